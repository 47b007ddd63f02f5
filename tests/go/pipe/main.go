// Sends with franz-go what it reads, one record a line, and tells what was acknowledged.
//
//	pipe SETTINGS TOPIC
//
// SETTINGS is JSON:
//
//	{"bootstrap": "host:port", "client_id": "go", "hosts": {"name": "127.0.0.1"},
//	 "tls": {"ca": FILE, "certificate": FILE, "key": FILE},
//	 "sasl": {"mechanism": "PLAIN", "user": "alice", "password": "or the token of OAUTHBEARER"}}
//
// Lines are "PARTITION VALUE". For each record acknowledged it writes "PARTITION OFFSET NUMBER", where lines are
// counted from 0; it ends with its input.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type settings struct {
	Bootstrap string
	ClientID  string `json:"client_id"`
	Hosts     map[string]string
	TLS       *tlsFiles
	SASL      *struct{ Mechanism, User, Password string }
}

type tlsFiles struct{ CA, Certificate, Key string }

func main() {
	var given settings
	check(json.Unmarshal([]byte(os.Args[1]), &given))
	client, err := kgo.NewClient(options(given)...)
	check(err)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 8<<20)
	acknowledged := make(chan string)
	written := make(chan struct{})
	go func() {
		for line := range acknowledged {
			fmt.Println(line)
		}
		close(written)
	}()
	for number := 0; lines.Scan(); number++ {
		partition, value, _ := strings.Cut(lines.Text(), " ")
		wanted, err := strconv.Atoi(partition)
		check(err)
		record := &kgo.Record{Topic: os.Args[2], Partition: int32(wanted), Value: []byte(value)}
		sent := number
		client.Produce(context.Background(), record, func(r *kgo.Record, err error) {
			check(err)
			acknowledged <- fmt.Sprintf("%d %d %d", r.Partition, r.Offset, sent)
		})
	}
	check(lines.Err())
	check(client.Flush(context.Background()))
	client.Close()
	close(acknowledged)
	<-written
}

func options(given settings) []kgo.Opt {
	chosen := []kgo.Opt{
		kgo.SeedBrokers(given.Bootstrap),
		kgo.ClientID(given.ClientID),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordDeliveryTimeout(2 * time.Minute),
	}
	if given.SASL != nil {
		chosen = append(chosen, kgo.SASL(mechanism(given.SASL.Mechanism, given.SASL.User, given.SASL.Password)))
	}
	return append(chosen, kgo.Dialer(dialer(given)))
}

// dialer connects to a name where the settings say it is, and over TLS asks for it by that name.
func dialer(given settings) func(context.Context, string, string) (net.Conn, error) {
	secured := given.TLS.config()
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		place := host
		if known, ok := given.Hosts[host]; ok {
			place = known
		}
		conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, network, net.JoinHostPort(place, port))
		if err != nil || secured == nil {
			return conn, err
		}
		named := secured.Clone()
		named.ServerName = host
		return tls.Client(conn, named), nil
	}
}

func (files *tlsFiles) config() *tls.Config {
	if files == nil {
		return nil
	}
	made := &tls.Config{RootCAs: x509.NewCertPool()}
	authority, err := os.ReadFile(files.CA)
	check(err)
	made.RootCAs.AppendCertsFromPEM(authority)
	if files.Certificate != "" {
		shown, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
		check(err)
		made.Certificates = []tls.Certificate{shown}
	}
	return made
}

func mechanism(name, user, password string) sasl.Mechanism {
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	}
	return oauth.Auth{Token: password}.AsMechanism()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Logs in by SASL with franz-go and produces one record of zeros, acknowledged.
//
//	login BOOTSTRAP MECHANISM USER PASSWORD CLIENT_ID TOPIC BYTES
//
// With OAUTHBEARER the password is the token.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	size, err := strconv.Atoi(os.Args[7])
	if err != nil {
		fail(err)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.SASL(mechanism(os.Args[2], os.Args[3], os.Args[4])),
		kgo.ClientID(os.Args[5]),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordDeliveryTimeout(time.Minute),
	)
	if err != nil {
		fail(err)
	}
	defer client.Close()
	record := &kgo.Record{Topic: os.Args[6], Value: make([]byte, size)}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		fail(err)
	}
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

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

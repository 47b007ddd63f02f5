// Command group is one member of a consumer group with Sarama: it tells when it joins, and each record that it reads.
//
//	group BOOTSTRAP CLIENT_ID GROUP TOPIC
//
// Lines out: "joined" whenever it has got its partitions, and "record PARTITION OFFSET BYTES".
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"

	"github.com/IBM/sarama"
)

type member struct {
	lock sync.Mutex
	out  *bufio.Writer
}

func (m *member) tell(line string, values ...any) {
	m.lock.Lock()
	defer m.lock.Unlock()
	fmt.Fprintf(m.out, line+"\n", values...)
	m.out.Flush()
}

func (m *member) Setup(sarama.ConsumerGroupSession) error {
	m.tell("joined")
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.tell("record %d %d %d", message.Partition, message.Offset, len(message.Value))
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	bootstrap, clientID, name, topic := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	config := sarama.NewConfig()
	config.ClientID = clientID
	config.Version = sarama.V3_6_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	group, err := sarama.NewConsumerGroup(strings.Split(bootstrap, ","), name, config)
	if err != nil {
		log.Fatal(err)
	}
	own := &member{out: bufio.NewWriter(os.Stdout)}
	for {
		if err := group.Consume(context.Background(), []string{topic}, own); err != nil {
			log.Print(err)
		}
	}
}

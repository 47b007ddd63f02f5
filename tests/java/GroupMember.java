import java.io.BufferedWriter;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One member of a consumer group with Kafka's own consumer: it tells when it joins, and each record that it reads.
 *
 * <p>GroupMember BOOTSTRAP CLIENT_ID GROUP TOPIC; lines out are those of tests/go/group/main.go.
 */
public final class GroupMember {
    public static void main(String[] args) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("client.id", args[1]);
        properties.put("group.id", args[2]);
        properties.put("auto.offset.reset", "earliest");
        FileOutputStream standard = new FileOutputStream(FileDescriptor.out);
        PrintWriter out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(standard)));
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, bytes, bytes)) {
            consumer.subscribe(List.of(args[3]), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    out.println("joined");
                    out.flush();
                }
            });
            while (!out.checkError()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    out.println("record " + record.partition() + " " + record.offset() + " " + record.value().length);
                }
                out.flush();
            }
        }
    }
}

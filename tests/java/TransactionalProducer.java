import java.io.FileReader;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes with Kafka's own producer in transactions, and commits each 100 ms, or as soon after that as the last commit
 * is over.
 *
 * <p>TransactionalProducer PROPERTIES TOPIC PARTITIONS RECORDS BYTES SECONDS. A transaction has so many records of so
 * many bytes, evenly over the partitions and the 100 ms. A line on standard output for each commit: how many records
 * are committed so far.
 */
public final class TransactionalProducer {
    private static final int COMMIT_INTERVAL_MS = 100;

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (FileReader file = new FileReader(args[0])) {
            properties.load(file);
        }
        int partitions = Integer.parseInt(args[2]);
        int records = Integer.parseInt(args[3]);
        byte[] value = new byte[Integer.parseInt(args[4])];
        long lasts = Long.parseLong(args[5]) * 1_000_000_000L;
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (Producer<byte[], byte[]> producer = new KafkaProducer<>(properties, bytes, bytes)) {
            producer.initTransactions();
            long began = System.nanoTime();
            for (long committed = 0; System.nanoTime() - began < lasts; System.out.println(committed)) {
                producer.beginTransaction();
                long begun = System.nanoTime();
                for (int number = 0; number < records; number++) {
                    long due = begun + number * COMMIT_INTERVAL_MS * 1_000_000L / records;
                    Thread.sleep(Math.max(due - System.nanoTime(), 0) / 1_000_000);
                    producer.send(new ProducerRecord<>(args[1], number % partitions, null, value));
                }
                producer.commitTransaction();
                committed += records;
            }
        }
    }
}

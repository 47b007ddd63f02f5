import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends with Kafka's own producer what it reads, one record a line, and tells what was acknowledged.
 *
 * <p>PipedProducer PROPERTIES TOPIC; lines in and out are those of tests/go/pipe/main.go.
 */
public final class PipedProducer {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (FileReader file = new FileReader(args[0])) {
            properties.load(file);
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringSerializer text = new StringSerializer();
        try (Producer<String, String> producer = new KafkaProducer<>(properties, text, text)) {
            int number = 0;
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                int space = line.indexOf(' ');
                int partition = Integer.parseInt(line.substring(0, space));
                send(producer, new ProducerRecord<>(args[1], partition, null, line.substring(space + 1)), number++);
            }
        }
    }

    private static void send(Producer<String, String> producer, ProducerRecord<String, String> record, int number) {
        producer.send(record, (sent, error) -> {
            if (error != null) {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
            System.out.println(sent.partition() + " " + sent.offset() + " " + number);
        });
    }
}

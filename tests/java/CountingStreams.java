import java.io.FileReader;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * An instance of a Kafka Streams application that writes each value again, followed by how many its key has had so far.
 *
 * <p>CountingStreams PROPERTIES TOPIC_IN TOPIC_OUT. The counts are in a store with a changelog. A thread that dies is
 * told on standard output ("stream thread died: WHY") and replaced.
 */
public final class CountingStreams {
    private static final String COUNTS = "counts";

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (FileReader file = new FileReader(args[0])) {
            properties.load(file);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(COUNTS), Serdes.String(), Serdes.Long()));
        builder.stream(args[1], Consumed.with(Serdes.String(), Serdes.String()))
            .process(Counting::new, COUNTS)
            .to(args[2], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("stream thread died: " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        new CountDownLatch(1).await();
    }

    private static final class Counting implements Processor<String, String, String, String> {
        private ProcessorContext<String, String> context;
        private KeyValueStore<String, Long> counts;

        @Override
        public void init(ProcessorContext<String, String> given) {
            context = given;
            counts = given.getStateStore(COUNTS);
        }

        @Override
        public void process(Record<String, String> record) {
            Long before = counts.get(record.key());
            long count = before == null ? 1 : before + 1;
            counts.put(record.key(), count);
            context.forward(record.withValue(record.value() + " " + count));
        }
    }
}

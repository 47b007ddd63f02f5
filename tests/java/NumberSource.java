import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.Importance;
import org.apache.kafka.common.config.ConfigDef.Type;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/**
 * A source of Kafka Connect: each task writes the numbers from 0 to `numbers` - 1, `per.poll` at a time.
 *
 * <p>The key is the task. The next number is the source offset, so with exactly-once support each number is there once.
 */
public final class NumberSource extends SourceConnector {
    private static final String TASK = "task";
    private Map<String, String> settings;

    @Override
    public void start(Map<String, String> given) {
        settings = given;
    }

    @Override
    public void stop() {
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Numbers.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int count) {
        List<Map<String, String>> configs = new ArrayList<>();
        for (int task = 0; task < count; task++) {
            Map<String, String> config = new HashMap<>(settings);
            config.put(TASK, Integer.toString(task));
            configs.add(config);
        }
        return configs;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef()
            .define("topic", Type.STRING, Importance.HIGH, "where the numbers go")
            .define("numbers", Type.LONG, Importance.HIGH, "how many each task writes")
            .define("per.poll", Type.INT, Importance.HIGH, "how many at a time")
            .define("pause.ms", Type.LONG, Importance.HIGH, "how long a task waits before them");
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> given) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    @Override
    public String version() {
        return "1";
    }

    /** One task. */
    public static final class Numbers extends SourceTask {
        private static final String NEXT = "next";
        private String task;
        private String topic;
        private long numbers;
        private int perPoll;
        private long pauseMs;
        private long next;

        @Override
        public void start(Map<String, String> given) {
            task = given.get(TASK);
            topic = given.get("topic");
            numbers = Long.parseLong(given.get("numbers"));
            perPoll = Integer.parseInt(given.get("per.poll"));
            pauseMs = Long.parseLong(given.get("pause.ms"));
            Map<String, Object> offset = context.offsetStorageReader().offset(Map.of(TASK, task));
            next = offset == null ? 0 : ((Number) offset.get(NEXT)).longValue();
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(pauseMs);
            List<SourceRecord> records = new ArrayList<>();
            while (records.size() < perPoll && next < numbers) {
                String number = Long.toString(next++);
                records.add(new SourceRecord(
                    Map.of(TASK, task), Map.of(NEXT, next), topic, Schema.STRING_SCHEMA, task, Schema.STRING_SCHEMA, number));
            }
            return records.isEmpty() ? null : records;
        }

        @Override
        public void stop() {
        }

        @Override
        public String version() {
            return "1";
        }
    }
}

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/**
 * Creates topics, adds partitions to one, or deletes topics, as fast as the Java Admin client gets to; it waits out
 * refusals by itself. Prints a line for each success: milliseconds since the start, and how many partitions it was.
 *
 * <p>Arguments: bootstrap servers, client id, create | grow | delete, prefix of the topics, partitions at a time,
 * seconds, and for delete how many topics there are.
 */
public final class MutationRate {
    /** Whoever waits long for a controller, a broker or this client, asks it again. */
    private static boolean isDoneAlready(Throwable error) {
        return error instanceof TopicExistsException
                || error instanceof UnknownTopicOrPartitionException
                || error instanceof InvalidPartitionsException;
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("client.id", arguments[1]);
        settings.put("default.api.timeout.ms", "120000");
        String kind = arguments[2];
        String prefix = arguments[3];
        int partitions = Integer.parseInt(arguments[4]);
        long end = System.nanoTime() + Long.parseLong(arguments[5]) * 1_000_000_000L;
        List<String> doomed = new ArrayList<>();
        if (kind.equals("delete")) {
            for (int i = 0; i < Integer.parseInt(arguments[6]); i++) {
                doomed.add(prefix + i);
            }
        }
        try (Admin admin = Admin.create(settings)) {
            long begin = System.nanoTime();
            for (int i = 0; System.nanoTime() < end && (!kind.equals("delete") || i < doomed.size()); i++) {
                KafkaFuture<Void> done = switch (kind) {
                    case "create" -> admin.createTopics(List.of(new NewTopic(prefix + i, partitions, (short) 1))).all();
                    case "grow" -> admin.createPartitions(Map.of(prefix, NewPartitions.increaseTo(1 + (i + 1) * partitions))).all();
                    default -> admin.deleteTopics(List.of(doomed.get(i))).all();
                };
                try {
                    done.get();
                } catch (ExecutionException error) {
                    if (!isDoneAlready(error.getCause())) {
                        throw error;
                    }
                }
                System.out.println((System.nanoTime() - begin) / 1_000_000 + " " + partitions);
            }
        }
    }
}

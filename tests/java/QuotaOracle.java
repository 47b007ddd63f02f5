import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Sanitizer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;

/**
 * Kafka's own ClientQuotaManager, driven by a script under a clock that the script moves.
 *
 * Reads lines of tab-separated fields from the first file, writes one line for each charge to the second:
 *
 *   Q time user client-id limit    sets a quota; "-" for absent, "*" for the default; limit "-" removes it
 *   C time user client-id value tags    charges; answered by throttle_time_ms and the rate of the sensor with these
 *                                  tags ("u", "c" or "uc" say which are set) as the bits of a double
 *
 * The class differs between 3.9 (Scala) and 4.x (Java), so the few calls that do go through reflection.
 */
public final class QuotaOracle {
    private static final class ScriptTime implements Time {
        private long now;

        @Override public long milliseconds() { return now; }
        @Override public long hiResClockMs() { return now; }
        @Override public long nanoseconds() { return now * 1_000_000; }
        @Override public void sleep(long ms) { now += ms; }
        @Override public void waitObject(Object o, Supplier<Boolean> condition, long deadline) { }
    }

    /** The calls that differ between versions. */
    private abstract static class Manager {
        Object target;
        Method charge;

        abstract void update(String user, String clientId, Quota limit) throws Exception;

        int charge(Session session, String clientId, double value, long now) throws Exception {
            return (Integer) charge.invoke(target, session, clientId, value, now);
        }
    }

    private static final class ScalaManager extends Manager {
        private final Method update;

        ScalaManager(ClientQuotaManagerConfig config, Metrics metrics, Time time) throws Exception {
            Class<?> type = Class.forName("kafka.server.QuotaType$Produce$");
            Class<?> manager = Class.forName("kafka.server.ClientQuotaManager");
            target = manager.getConstructors()[0].newInstance(
                config, metrics, type.getField("MODULE$").get(null), time, "oracle", option(null));
            Class<?> option = Class.forName("scala.Option");
            update = manager.getMethod("updateQuota", option, option, option, option);
            charge = manager.getMethod(
                "recordAndGetThrottleTimeMs", Session.class, String.class, double.class, long.class);
        }

        private static Object option(Object value) throws Exception {
            return Class.forName("scala.Option").getMethod("apply", Object.class).invoke(null, value);
        }

        private static String name(String field, boolean sanitized) {
            if (field.equals("-")) return null;
            if (field.equals("*")) return "<default>";
            return sanitized ? Sanitizer.sanitize(field) : field;
        }

        @Override void update(String user, String clientId, Quota limit) throws Exception {
            update.invoke(target, option(name(user, true)), option(name(clientId, false)),
                option(name(clientId, true)), option(limit));
        }
    }

    private static final class JavaManager extends Manager {
        private final Method update;
        private final Class<?> manager;

        @SuppressWarnings({"unchecked", "rawtypes"})
        JavaManager(ClientQuotaManagerConfig config, Metrics metrics, Time time) throws Exception {
            manager = Class.forName("org.apache.kafka.server.quota.ClientQuotaManager");
            Class<?> type = Class.forName("org.apache.kafka.server.quota.QuotaType");
            Constructor<?> make = manager.getConstructor(
                ClientQuotaManagerConfig.class, Metrics.class, type, Time.class, String.class);
            target = make.newInstance(config, metrics, Enum.valueOf((Class) type, "PRODUCE"), time, "oracle");
            update = manager.getMethod("updateQuota", Optional.class, Optional.class, Optional.class);
            charge = manager.getMethod(
                "recordAndGetThrottleTimeMs", Session.class, String.class, double.class, long.class);
        }

        private Optional<?> entity(String field, String constant, String record) throws Exception {
            if (field.equals("-")) return Optional.empty();
            if (field.equals("*")) return Optional.of(manager.getField(constant).get(null));
            Class<?> named = Class.forName(manager.getName() + "$" + record);
            return Optional.of(named.getDeclaredConstructor(String.class).newInstance(
                record.equals("UserEntity") ? Sanitizer.sanitize(field) : field));
        }

        @Override void update(String user, String clientId, Quota limit) throws Exception {
            update.invoke(target, entity(user, "DEFAULT_USER_ENTITY", "UserEntity"),
                entity(clientId, "DEFAULT_USER_CLIENT_ID", "ClientIdEntity"), Optional.ofNullable(limit));
        }
    }

    private static Manager manager(ClientQuotaManagerConfig config, Metrics metrics, Time time) throws Exception {
        try {
            Class.forName("org.apache.kafka.server.quota.ClientQuotaManager");
        } catch (ClassNotFoundException older) {
            return new ScalaManager(config, metrics, time);
        }
        return new JavaManager(config, metrics, time);
    }

    public static void main(String[] args) throws Exception {
        ScriptTime time = new ScriptTime();
        int samples = Integer.parseInt(args[2]);
        int windowSeconds = Integer.parseInt(args[3]);
        Metrics metrics = new Metrics(new MetricConfig(), List.of(), time, false);
        Manager manager = manager(new ClientQuotaManagerConfig(samples, windowSeconds), metrics, time);
        Map<String, Session> sessions = new HashMap<>();
        InetAddress anywhere = InetAddress.getLoopbackAddress();
        try (BufferedReader in = Files.newBufferedReader(Path.of(args[0]));
             BufferedWriter out = Files.newBufferedWriter(Path.of(args[1]))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] field = line.split("\t", -1);
                time.now = Long.parseLong(field[1]);
                if (field[0].equals("Q")) {
                    Quota limit = field[4].equals("-") ? null : Quota.upperBound(Double.parseDouble(field[4]));
                    manager.update(field[2], field[3], limit);
                    continue;
                }
                Session session = sessions.computeIfAbsent(field[2],
                    name -> new Session(new KafkaPrincipal(KafkaPrincipal.USER_TYPE, name), anywhere));
                int throttle = manager.charge(session, field[3], Double.parseDouble(field[4]), time.now);
                out.write(throttle + "\t" + rate(metrics, session, field[3], field[5]) + "\n");
            }
        }
        System.exit(0);
    }

    /** Only the sensor that was just charged may be looked at: in Kafka looking at an older one changes it. */
    private static String rate(Metrics metrics, Session session, String clientId, String tags) {
        KafkaMetric metric = metrics.metrics().get(metrics.metricName("byte-rate", "Produce", "", Map.of(
            "user", tags.contains("u") ? session.sanitizedUser : "", "client-id", tags.contains("c") ? clientId : "")));
        return metric == null ? "-" : Long.toHexString(Double.doubleToRawLongBits((Double) metric.metricValue()));
    }
}

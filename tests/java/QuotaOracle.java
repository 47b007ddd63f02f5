import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;
import org.apache.kafka.common.errors.ThrottlingQuotaExceededException;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Sanitizer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;

/**
 * Kafka's own quota managers, driven by a script under a clock that the script moves.
 *
 * Arguments: script, answers, quota type (PRODUCE, FETCH, REQUEST, CONTROLLER_MUTATION), samples, window in seconds.
 * The script has lines of tab-separated fields; each gets one line of answer:
 *
 *   Q time user client-id limit       sets a quota; "-" for absent, "*" for the default; limit "-" removes it
 *   C time user client-id value       charges: throttle time, state
 *   F time user client-id value       charges, and takes back what is throttled: throttle time, state
 *   U time user client-id value       records without a look at the quota
 *   M time user client-id             the most that may be fetched at once
 *   N time id user client-id s|p      a request for mutations begins, strict or permissive
 *   R time id value                   it mutates: "ok" or "refused" and the throttle time, state
 *   B time id value                   it gives back: "ok", state
 *   T time id                         it is answered, and over: throttle time
 *
 * The state is that of the sensor that Kafka chose: the bits of its rate or tokens, its user and client-id tag; "off"
 * while the manager is. Only a sensor that was just used may be looked at: in Kafka looking at an older one changes it.
 *
 * The classes differ between 3.9 (Scala) and 4.x (Java), so the calls that do go through reflection.
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
        private final Object target;
        private final Method charge;
        private final Method record;
        private final Method sensors;
        private final Method enabled;
        private final Method tags;
        private final Method sensor;

        Manager(Object target, Class<?> clientSensors) throws Exception {
            this.target = target;
            Class<?> type = target.getClass();
            charge = type.getMethod(
                "maybeRecordAndGetThrottleTimeMs", Session.class, String.class, double.class, long.class);
            record = type.getMethod("recordNoThrottle", Session.class, String.class, double.class);
            sensors = type.getMethod("getOrCreateQuotaSensors", Session.class, String.class);
            enabled = type.getMethod("quotasEnabled");
            tags = clientSensors.getMethod("metricTags");
            sensor = clientSensors.getMethod("quotaSensor");
        }

        abstract void update(String user, String clientId, Quota limit) throws Exception;

        abstract double most(Session session, String clientId) throws Exception;

        abstract String tag(Object tags, String name) throws Exception;

        abstract Class<?> mutationQuota() throws Exception;

        void takeBack(Session session, String clientId, double value, long now) throws Exception {
            record(session, clientId, -value);
        }

        boolean isOn() throws Exception {
            return (Boolean) enabled.invoke(target);
        }

        int charge(Session session, String clientId, double value, long now) throws Exception {
            return (Integer) charge.invoke(target, session, clientId, value, now);
        }

        void record(Session session, String clientId, double value) throws Exception {
            record.invoke(target, session, clientId, value);
        }

        Object sensors(Session session, String clientId) throws Exception {
            return sensors.invoke(target, session, clientId);
        }

        Sensor sensor(Object sensors) throws Exception {
            return (Sensor) sensor.invoke(sensors);
        }

        String[] tags(Object sensors) throws Exception {
            Object map = tags.invoke(sensors);
            return new String[] {tag(map, "user"), tag(map, "client-id")};
        }

        Object mutationQuota(Session session, String clientId, boolean strict) throws Exception {
            return target.getClass().getMethod(strict ? "newStrictQuotaFor" : "newPermissiveQuotaFor",
                Session.class, String.class).invoke(target, session, clientId);
        }
    }

    private static final class ScalaManager extends Manager {
        private final Object target;
        private final Method update;
        private final Method most;
        private final Method get = Class.forName("scala.collection.immutable.Map").getMethod("apply", Object.class);

        ScalaManager(String type, ClientQuotaManagerConfig config, Metrics metrics, Time time) throws Exception {
            this(make(type, config, metrics, time));
        }

        private ScalaManager(Object target) throws Exception {
            super(target, Class.forName("kafka.server.ClientSensors"));
            this.target = target;
            Class<?> option = Class.forName("scala.Option");
            update = target.getClass().getMethod("updateQuota", option, option, option, option);
            most = target.getClass().getMethod("getMaxValueInQuotaWindow", Session.class, String.class);
        }

        private static Object make(String type, ClientQuotaManagerConfig config, Metrics metrics, Time time)
                throws Exception {
            if (type.equals("REQUEST") || type.equals("CONTROLLER_MUTATION")) {
                String name = type.equals("REQUEST") ? "ClientRequestQuotaManager" : "ControllerMutationQuotaManager";
                return Class.forName("kafka.server." + name).getConstructors()[0]
                    .newInstance(config, metrics, time, "oracle", option(null));
            }
            String name = type.equals("PRODUCE") ? "Produce" : "Fetch";
            Object quotaType = Class.forName("kafka.server.QuotaType$" + name + "$").getField("MODULE$").get(null);
            return Class.forName("kafka.server.ClientQuotaManager").getConstructors()[0]
                .newInstance(config, metrics, quotaType, time, "oracle", option(null));
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

        @Override double most(Session session, String clientId) throws Exception {
            return (Double) most.invoke(target, session, clientId);
        }

        @Override String tag(Object tags, String name) throws Exception {
            return (String) get.invoke(tags, name);
        }

        @Override Class<?> mutationQuota() throws Exception {
            return Class.forName("kafka.server.ControllerMutationQuota");
        }
    }

    private static final class JavaManager extends Manager {
        private static final String PACKAGE = "org.apache.kafka.server.quota.";

        private final Object target;
        private final Class<?> manager = Class.forName(PACKAGE + "ClientQuotaManager");
        private final Method update;
        private final Method most;
        private final Method takeBack;

        JavaManager(String type, ClientQuotaManagerConfig config, Metrics metrics, Time time) throws Exception {
            this(make(type, config, metrics, time));
        }

        private JavaManager(Object target) throws Exception {
            super(target, Class.forName(PACKAGE + "ClientSensors"));
            this.target = target;
            update = manager.getMethod("updateQuota", Optional.class, Optional.class, Optional.class);
            most = manager.getMethod("maxValueInQuotaWindow", Session.class, String.class);
            takeBack = manager.getMethod(
                "unrecordQuotaSensor", Session.class, String.class, double.class, long.class);
        }

        @SuppressWarnings({"unchecked", "rawtypes"})
        private static Object make(String type, ClientQuotaManagerConfig config, Metrics metrics, Time time)
                throws Exception {
            if (type.equals("REQUEST") || type.equals("CONTROLLER_MUTATION")) {
                String name = type.equals("REQUEST")
                    ? "kafka.server.ClientRequestQuotaManager" : PACKAGE + "ControllerMutationQuotaManager";
                return Class.forName(name).getConstructors()[0]
                    .newInstance(config, metrics, time, "oracle", Optional.empty());
            }
            Class<?> quotaType = Class.forName(PACKAGE + "QuotaType");
            return Class.forName(PACKAGE + "ClientQuotaManager")
                .getConstructor(ClientQuotaManagerConfig.class, Metrics.class, quotaType, Time.class, String.class)
                .newInstance(config, metrics, Enum.valueOf((Class) quotaType, type), time, "oracle");
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

        @Override double most(Session session, String clientId) throws Exception {
            return (Double) most.invoke(target, session, clientId);
        }

        @Override void takeBack(Session session, String clientId, double value, long now) throws Exception {
            takeBack.invoke(target, session, clientId, value, now);
        }

        @Override String tag(Object tags, String name) {
            return (String) ((Map<?, ?>) tags).get(name);
        }

        @Override Class<?> mutationQuota() throws Exception {
            return Class.forName(PACKAGE + "ControllerMutationQuota");
        }
    }

    private static Manager manager(String type, ClientQuotaManagerConfig config, Metrics metrics, Time time)
            throws Exception {
        try {
            Class.forName("org.apache.kafka.server.quota.ClientQuotaManager");
        } catch (ClassNotFoundException older) {
            return new ScalaManager(type, config, metrics, time);
        }
        return new JavaManager(type, config, metrics, time);
    }

    /** A request for mutations that is under way; it has no sensors if it began while the manager was off. */
    private record Mutation(Object quota, Object sensors) { }

    private final ScriptTime time = new ScriptTime();
    private final Metrics metrics = new Metrics(new MetricConfig(), List.of(), time, false);
    private final Manager manager;
    private final String metricName;
    private final String metricGroup;
    private final Map<String, Session> sessions = new HashMap<>();
    private final Map<String, Mutation> mutations = new HashMap<>();
    private final Map<List<String>, KafkaMetric> measured = new HashMap<>();
    private final Method mutate;
    private final Method throttleTime;

    private QuotaOracle(String type, ClientQuotaManagerConfig config) throws Exception {
        manager = manager(type, config, metrics, time);
        metricName = switch (type) {
            case "REQUEST" -> "request-time";
            case "CONTROLLER_MUTATION" -> "tokens";
            default -> "byte-rate";
        };
        metricGroup = switch (type) {
            case "PRODUCE" -> "Produce";
            case "FETCH" -> "Fetch";
            case "REQUEST" -> "Request";
            default -> "ControllerMutation";
        };
        mutate = manager.mutationQuota().getMethod("record", double.class);
        throttleTime = manager.mutationQuota().getMethod("throttleTime");
    }

    private Session session(String user) {
        return sessions.computeIfAbsent(user, name ->
            new Session(new KafkaPrincipal(KafkaPrincipal.USER_TYPE, name), InetAddress.getLoopbackAddress()));
    }

    private String state(Object sensors) throws Exception {
        String[] tags = manager.tags(sensors);
        KafkaMetric metric = measured.computeIfAbsent(List.of(tags), key -> metrics.metric(
            metrics.metricName(metricName, metricGroup, "", Map.of("user", key.get(0), "client-id", key.get(1)))));
        String bits = Long.toHexString(Double.doubleToRawLongBits((Double) metric.metricValue()));
        return bits + "\t" + Sanitizer.desanitize(tags[0]) + "\t" + tags[1];
    }

    private String answer(String[] field) throws Exception {
        switch (field[0]) {
            case "Q":
                manager.update(field[2], field[3],
                    field[4].equals("-") ? null : Quota.upperBound(Double.parseDouble(field[4])));
                return "";
            case "N": {
                Object quota = manager.mutationQuota(session(field[3]), field[4], field[5].equals("s"));
                Object sensors = manager.isOn() ? manager.sensors(session(field[3]), field[4]) : null;
                mutations.put(field[2], new Mutation(quota, sensors));
                return "";
            }
            case "R":
            case "B":
            case "T":
                return mutationAnswer(field, mutations.get(field[2]));
            default:
                return clientAnswer(field, session(field[2]), field[3]);
        }
    }

    private String clientAnswer(String[] field, Session session, String clientId) throws Exception {
        if (field[0].equals("M")) return Integer.toString((int) manager.most(session, clientId));
        double value = Double.parseDouble(field[4]);
        if (field[0].equals("U")) {
            if (manager.isOn()) manager.record(session, clientId, value);
            return "";
        }
        int throttle = manager.charge(session, clientId, value, time.now);
        if (field[0].equals("F") && throttle > 0) manager.takeBack(session, clientId, value, time.now);
        return throttle + "\t" + (manager.isOn() ? state(manager.sensors(session, clientId)) : "off");
    }

    private String mutationAnswer(String[] field, Mutation mutation) throws Exception {
        if (field[0].equals("T")) {
            mutations.remove(field[2]);
            return throttleTime.invoke(mutation.quota).toString();
        }
        double value = Double.parseDouble(field[3]);
        String answer = "ok";
        if (field[0].equals("B")) {
            if (mutation.sensors != null) manager.sensor(mutation.sensors).record(-value, time.now, false);
        } else {
            answer = mutate(mutation.quota, value);
        }
        return answer + "\t" + (mutation.sensors == null ? "off" : state(mutation.sensors));
    }

    private String mutate(Object quota, double value) throws Exception {
        try {
            mutate.invoke(quota, value);
            return "ok";
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() instanceof ThrottlingQuotaExceededException refused)
                return "refused " + refused.throttleTimeMs();
            throw thrown;
        }
    }

    public static void main(String[] args) throws Exception {
        QuotaOracle oracle = new QuotaOracle(args[2],
            new ClientQuotaManagerConfig(Integer.parseInt(args[3]), Integer.parseInt(args[4])));
        try (BufferedReader in = Files.newBufferedReader(Path.of(args[0]));
             BufferedWriter out = Files.newBufferedWriter(Path.of(args[1]))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] field = line.split("\t", -1);
                oracle.time.now = Long.parseLong(field[1]);
                out.write(oracle.answer(field) + "\n");
            }
        }
        System.exit(0);
    }
}

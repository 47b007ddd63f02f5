import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import kafka.network.ConnectionQuotas;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.ConnectionQuotaEntity;
import org.apache.kafka.network.ConnectionThrottledException;
import org.apache.kafka.network.TooManyConnectionsException;

/**
 * Kafka's own ConnectionQuotas, driven by a script under a clock that the script moves.
 *
 * Arguments: script, answers, samples, window in seconds. The script has lines of tab-separated fields; each gets one
 * line of answer:
 *
 *   A time listener                       adds a listener; INTERNAL is the one between brokers
 *   D time listener                       removes it
 *   P time address rate                   rate of an address, "*": of all others; "-" removes it
 *   N time count                          connections per address
 *   O time address:count,...              those of single addresses
 *   B time rate count                     rate and connections of the broker
 *   L time listener rate count            rate and connections of a listener
 *   C time listener address told go gone  a connection arrives, and is expected to be told to wait `told` ms and to go
 *                                         on at `go`, once the connections "listener/address,..." are gone:
 *                                         answered by when it went on, what became of it, and the state
 *   E time listener address other         a connection ends: answered by how many its address still has, and whether
 *                                         the other listener has to close one
 *
 * The state is the bits of the rates of address ("-" without a limit), broker ("-" if it does not measure this listener)
 * and listener; the latter two only if the connection did not have to wait: then they were just used, and in Kafka
 * looking at an older one changes it.
 *
 * ConnectionQuotas.inc blocks its thread while a connection waits. So there is a second thread that wakes it: first
 * when it may not go on yet (1 ms too early, or before the slot is free), and then when it may. Each time it looks at
 * the clock it gets the time of the next step, and one that goes on too early or too late is found out by that.
 */
public final class ConnectionOracle {
    /** What wakes a connection that waits: the clock then, and which connection is gone, if any. */
    private record Wake(long at, String gone) { }

    private final class ScriptTime implements Time {
        private long now;

        @Override public long milliseconds() {
            if (!waits) return now;
            now = wakes.get(looked).at;
            looked++;
            looks++;
            LockSupport.unpark(waker);
            return now;
        }

        /** Kafka asks for it before it waits, and again when it has waited. */
        @Override public long nanoseconds() {
            waits = !waits;
            LockSupport.unpark(waker);
            return now * 1_000_000;
        }

        @Override public long hiResClockMs() { return now; }
        @Override public void sleep(long ms) { now += ms; }
        @Override public void waitObject(Object o, Supplier<Boolean> condition, long deadline) { }
    }

    private final ScriptTime time = new ScriptTime();
    private final Metrics metrics = new Metrics(new MetricConfig(), List.of(), time, false);
    private final KafkaConfig config;
    private final ConnectionQuotas quotas;
    private final Object lock;
    private final com.yammer.metrics.core.Meter blocked = new com.yammer.metrics.core.MetricsRegistry()
        .newMeter(ConnectionOracle.class, "blocked", "percent", TimeUnit.NANOSECONDS);
    private final Map<String, InetAddress> addresses = new HashMap<>();
    private final Map<ConnectionQuotaKey, KafkaMetric> measured = new HashMap<>();
    private final Thread waker = new Thread(this::wake);

    private record ConnectionQuotaKey(String name, Map<String, String> tags) { }

    // Written under the lock of the connection counts, by the thread that has it.
    private volatile boolean waits;
    private volatile int looked;
    private volatile long looks;
    private volatile List<Wake> wakes = List.of();

    private ConnectionOracle(int samples, int windowSeconds) throws Exception {
        Properties props = new Properties();
        props.setProperty("process.roles", "broker");
        props.setProperty("node.id", "1");
        props.setProperty("controller.quorum.voters", "2@localhost:9093");
        props.setProperty("controller.listener.names", "CONTROLLER");
        props.setProperty("listeners", "INTERNAL://localhost:1,FRONT://localhost:2,BACK://localhost:3");
        props.setProperty("listener.security.protocol.map",
            "CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,FRONT:PLAINTEXT,BACK:PLAINTEXT");
        props.setProperty("inter.broker.listener.name", "INTERNAL");
        props.setProperty("quota.window.num", Integer.toString(samples));
        props.setProperty("quota.window.size.seconds", Integer.toString(windowSeconds));
        config = KafkaConfig.fromProps(props);
        quotas = new ConnectionQuotas(config, time, metrics);
        Field counts = ConnectionQuotas.class.getDeclaredField("counts");
        counts.setAccessible(true);
        lock = counts.get(quotas);
        waker.setDaemon(true);
        waker.start();
    }

    /** While it has the lock and a connection waits, that one is within Object.wait. */
    private void wake() {
        while (true) {
            boolean woken;
            long before;
            synchronized (lock) {
                woken = waits;
                before = looks;
                if (waits) wake(looked);
            }
            while (woken && waits && looks == before) LockSupport.parkNanos(1_000_000);
            if (!waits) LockSupport.park();
        }
    }

    private void wake(int step) {
        if (step == wakes.size()) {
            System.err.println("still waits after " + wakes);
            Runtime.getRuntime().halt(3);
        }
        if (wakes.get(step).gone != null) end(wakes.get(step).gone.split("/"));
        lock.notifyAll();
    }

    private void end(String[] connection) {
        quotas.dec(new ListenerName(connection[0]), address(connection[1]));
    }

    private InetAddress address(String text) {
        return addresses.computeIfAbsent(text, name -> {
            try {
                return InetAddress.getByName(name);
            } catch (java.net.UnknownHostException none) {
                throw new IllegalArgumentException(none);
            }
        });
    }

    private String rate(ConnectionQuotaEntity entity) {
        KafkaMetric metric = measured.computeIfAbsent(
            new ConnectionQuotaKey(entity.metricName(), entity.metricTags()),
            key -> metrics.metric(metrics.metricName(key.name, "socket-server-metrics", "", key.tags)));
        return Long.toHexString(Double.doubleToRawLongBits((Double) metric.metricValue()));
    }

    private String connect(String[] field) throws Exception {
        ListenerName listener = new ListenerName(field[2]);
        InetAddress address = address(field[3]);
        long told = Long.parseLong(field[4]);
        long go = Long.parseLong(field[5]);
        String[] gone = field[6].isEmpty() ? new String[0] : field[6].split(",");
        List<Wake> plan = new ArrayList<>();
        if (told > 0) plan.add(new Wake(time.now + told - 1, null));
        if (gone.length > 0) plan.add(new Wake(time.now + told, null));
        for (String each : gone) plan.add(new Wake(go, each));
        if (gone.length == 0) plan.add(new Wake(go, null));
        wakes = plan;
        looked = 0;
        boolean waited = told > 0 || gone.length > 0;
        String outcome;
        try {
            quotas.inc(listener, address, blocked);
            outcome = "admitted";
        } catch (ConnectionThrottledException slower) {
            outcome = "too_fast " + slower.throttleTimeMs;
        } catch (TooManyConnectionsException many) {
            quotas.dec(listener, address);
            outcome = "too_many " + many.count;
        }
        String steps = waited ? looked + " of " + plan.size() : looked + " of 0";
        boolean limited = quotas.connectionRateForIp(address) != Integer.MAX_VALUE;
        String state = limited ? rate(ConnectionQuotaEntity.ipQuotaEntity(address)) : "-";
        if (!waited) {
            boolean beyondBroker = field[2].equals("INTERNAL") && quotas.maxConnectionsPerListener().size() > 1;
            state += "\t" + (beyondBroker ? "-" : rate(ConnectionQuotaEntity.brokerQuotaEntity()));
            state += "\t" + rate(ConnectionQuotaEntity.listenerQuotaEntity(listener.value()));
        }
        return time.now + "\t" + steps + "\t" + outcome + "\t" + state;
    }

    private static int number(String field) {
        return field.equals("-") ? Integer.MAX_VALUE : Integer.parseInt(field);
    }

    private static Object option(Object value) throws Exception {
        return Class.forName("scala.Option").getMethod("apply", Object.class).invoke(null, value);
    }

    private String answer(String[] field) throws Exception {
        switch (field[0]) {
            case "A": quotas.addListener(config, new ListenerName(field[2])); return "";
            case "D":
                quotas.removeListener(config, new ListenerName(field[2]));
                measured.clear();
                return "";
            case "P": {
                Class<?> option = Class.forName("scala.Option");
                Method update = ConnectionQuotas.class.getMethod("updateIpConnectionRateQuota", option, option);
                update.invoke(quotas, option(field[2].equals("*") ? null : address(field[2])),
                    option(field[3].equals("-") ? null : Integer.valueOf(field[3])));
                return "";
            }
            case "N": quotas.updateMaxConnectionsPerIp(number(field[2])); return "";
            case "O": overrides(field[2]); return "";
            case "B":
                quotas.updateBrokerMaxConnectionRate(number(field[2]));
                quotas.updateBrokerMaxConnections(number(field[3]));
                return "";
            case "L":
                quotas.maxConnectionsPerListener().apply(new ListenerName(field[2])).reconfigure(Map.of(
                    "max.connection.creation.rate", number(field[3]), "max.connections", number(field[4])));
                return "";
            case "C": return connect(field);
            default: {
                end(new String[] {field[2], field[3]});
                return quotas.get(address(field[3])) + "\t" + quotas.maxConnectionsExceeded(new ListenerName(field[4]));
            }
        }
    }

    private void overrides(String text) {
        scala.collection.mutable.HashMap<String, Object> counts = new scala.collection.mutable.HashMap<>();
        for (String each : text.isEmpty() ? new String[0] : text.split(",")) {
            int colon = each.lastIndexOf(':');
            counts.put(each.substring(0, colon), Integer.parseInt(each.substring(colon + 1)));
        }
        quotas.updateMaxConnectionsPerIpOverride(counts);
    }

    public static void main(String[] args) throws Exception {
        ConnectionOracle oracle = new ConnectionOracle(Integer.parseInt(args[2]), Integer.parseInt(args[3]));
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

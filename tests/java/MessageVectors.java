import java.io.PrintStream;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.IntSupplier;
import java.util.function.ToIntFunction;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.CreatePartitionsResponseData;
import org.apache.kafka.common.message.CreateTopicsResponseData;
import org.apache.kafka.common.message.DeleteTopicsResponseData;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.ProduceRequestData;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.message.ShareFetchRequestData;
import org.apache.kafka.common.message.ShareFetchResponseData;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * Writes frames made by Kafka's own message classes, one JSON object per line, to the file that it is given.
 *
 * <p>Every API, every version that brokers serve by default, request and response, with values at their edges. What a
 * proxy changes in a frame is done here to the object, which is then serialised anew: the oracle for splicing. A changed
 * frame is written as [bytes kept at the start, hex between, bytes kept at the end]. The same jar gives the same bytes.
 */
public final class MessageVectors {
    static final int PRODUCE = 0;
    static final int FETCH = 1;
    static final int METADATA = 3;
    static final int FIND_COORDINATOR = 10;
    static final int CREATE_TOPICS = 19;
    static final int DELETE_TOPICS = 20;
    static final int CREATE_PARTITIONS = 37;
    static final int DESCRIBE_CLUSTER = 60;
    static final int SHARE_FETCH = 78;
    static final int SHARE_ACKNOWLEDGE = 79;
    static final Set<Integer> ADDRESSED =
            Set.of(PRODUCE, FETCH, METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER, SHARE_FETCH, SHARE_ACKNOWLEDGE);

    static final int THROTTLE_MS = 1234567;
    static final int CEILING_BYTES = 4096;
    /** Compact lengths grow to two bytes at 127. */
    static final int[] LONG = {126, 127, 128};
    /** The versions from which on error 89 may be answered. */
    static final Map<Integer, Integer> STRICT_SINCE = Map.of(CREATE_TOPICS, 6, DELETE_TOPICS, 5, CREATE_PARTITIONS, 3);

    static final String[] CLIENT_IDS = {null, "", "etl", "c".repeat(127), "c".repeat(128), "käufer-客户-🦜"};

    enum Numbers { DEFAULT, LOWEST, HIGHEST, MIXED }

    /** What values a message is filled with. */
    static final class Variant {
        final String name;
        Numbers numbers = Numbers.MIXED;
        ToIntFunction<String> arraySize = path -> 1;
        IntSupplier textBytes = () -> 3;
        double nulls = 0;
        double unknownTags = 0;
        /** Below 0: hosts are filled like any text. */
        int hostBytes = -1;
        /** Every second address is that of a lookup which failed: node -1, no host, port -1. */
        boolean failedLookups = false;

        Variant(String name) {
            this.name = name;
        }
    }

    /** Fills one message by its schema, so with exactly the fields that the version has. */
    static final class Filler {
        final Variant variant;
        final short version;
        final Random random;

        Filler(Variant variant, short version, Random random) {
            this.variant = variant;
            this.version = version;
            this.random = random;
        }

        void fill(Message message, Schema schema, String path) throws ReflectiveOperationException {
            for (BoundField bound : schema.fields()) {
                if (bound.def.type instanceof TaggedFields section) {
                    for (Field field : tagged(section)) {
                        fillField(message, field, path);
                    }
                    addUnknownTags(message.unknownTaggedFields(), path.isEmpty());
                } else {
                    fillField(message, bound.def, path);
                }
            }
        }

        private void fillField(Message message, Field field, String path) throws ReflectiveOperationException {
            String fieldPath = path + "." + field.name;
            Method setter = setter(message, field.name);
            Method getter = message.getClass().getMethod(uncapitalised(setter.getName().substring(3)));
            boolean nullable = field.type.isNullable() && acceptsNull(message, setter);
            Object value;
            if (nullable && random.nextDouble() < variant.nulls) {
                value = null;
            } else if (variant.numbers == Numbers.DEFAULT && isScalar(setter.getParameterTypes()[0])) {
                return;
            } else if (variant.numbers == Numbers.DEFAULT && nullable && getter.invoke(message) == null) {
                return;
            } else {
                value = value(setter.getGenericParameterTypes()[0], field.type, field.name, fieldPath);
            }
            setter.invoke(message, value);
        }

        /** False for records that may not be null; the schema type of Kafka 3 does not tell them from those that may. */
        private boolean acceptsNull(Message message, Method setter) throws ReflectiveOperationException {
            if (!isRecords(setter.getParameterTypes()[0])) {
                return true;
            }
            Message empty = message.getClass().getConstructor().newInstance();
            setter.invoke(empty, (Object) null);
            try {
                empty.size(new ObjectSerializationCache(), version);
                return true;
            } catch (NullPointerException notNullable) {
                return false;
            }
        }

        private Object value(
                Type javaType, org.apache.kafka.common.protocol.types.Type type, String name, String path)
                throws ReflectiveOperationException {
            Class<?> javaClass = javaType instanceof ParameterizedType p ? (Class<?>) p.getRawType() : (Class<?>) javaType;
            if (Collection.class.isAssignableFrom(javaClass)) {
                return array(javaType, javaClass, type.arrayElementType().orElseThrow(), name, path);
            }
            if (Message.class.isAssignableFrom(javaClass)) {
                Message struct = (Message) javaClass.getConstructor().newInstance();
                fill(struct, (Schema) type, path);
                return struct;
            }
            if (javaClass == String.class) {
                return text(variant.textBytes.getAsInt());
            }
            if (javaClass == byte[].class) {
                return bytes(variant.textBytes.getAsInt());
            }
            if (javaClass == ByteBuffer.class) {
                return ByteBuffer.wrap(bytes(variant.textBytes.getAsInt()));
            }
            if (isRecords(javaClass)) {
                return records(javaClass.getPackageName(), variant.textBytes.getAsInt());
            }
            if (javaClass == Uuid.class) {
                return uuid();
            }
            return number(javaClass, type.toString(), name);
        }

        private Object array(
                Type javaType,
                Class<?> javaClass,
                org.apache.kafka.common.protocol.types.Type elementType,
                String name,
                String path)
                throws ReflectiveOperationException {
            Type collectionType = javaType instanceof ParameterizedType ? javaType : javaClass.getGenericSuperclass();
            Type element = ((ParameterizedType) collectionType).getActualTypeArguments()[0];
            @SuppressWarnings("unchecked")
            Collection<Object> array =
                    javaClass == List.class
                            ? new ArrayList<>()
                            : (Collection<Object>) javaClass.getConstructor().newInstance();
            int size = variant.arraySize.applyAsInt(path);
            for (int i = 0; i < size; i++) {
                array.add(value(element, elementType, name, path));
            }
            if (array.size() != size) {
                throw new IllegalStateException(path + ": " + array.size() + " of " + size + " elements");
            }
            return array;
        }

        private Object number(Class<?> javaClass, String type, String name) {
            if (javaClass == boolean.class || javaClass == Boolean.class) {
                return variant.numbers == Numbers.MIXED ? random.nextBoolean() : variant.numbers == Numbers.HIGHEST;
            }
            if (javaClass == double.class || javaClass == Double.class) {
                return variant.numbers == Numbers.MIXED ? random.nextGaussian() : edge(-Double.MAX_VALUE, Double.MAX_VALUE);
            }
            if (variant.numbers == Numbers.MIXED) {
                switch (name) {
                    case "acks":
                        return (short) (random.nextInt(3) - 1);
                    case "endpoint_type":
                        return (byte) (random.nextInt(4) == 0 ? 2 : 1);
                    case "throttle_time_ms":
                        int[] times = {0, 1, 250, THROTTLE_MS - 1, THROTTLE_MS, THROTTLE_MS + 1, Integer.MAX_VALUE};
                        return times[random.nextInt(times.length)];
                    case "max_bytes", "min_bytes":
                        int[] limits = {0, 1, CEILING_BYTES - 1, CEILING_BYTES, CEILING_BYTES + 1, Integer.MAX_VALUE};
                        return limits[random.nextInt(limits.length)];
                    case "node_id", "broker_id":
                        int[] ids = {-1, 0, 1, 7, 999, 1000, 123456, Integer.MAX_VALUE};
                        return ids[random.nextInt(ids.length)];
                    default:
                        break;
                }
            }
            if (javaClass == byte.class || javaClass == Byte.class) {
                return (byte) integer(Byte.MIN_VALUE, Byte.MAX_VALUE);
            }
            if (javaClass == short.class || javaClass == Short.class) {
                return (short) integer(Short.MIN_VALUE, Short.MAX_VALUE);
            }
            if (javaClass == int.class || javaClass == Integer.class) {
                boolean port = type.equals("UINT16");
                return (int) (port ? integer(0, 65535) : integer(Integer.MIN_VALUE, Integer.MAX_VALUE));
            }
            if (javaClass == long.class || javaClass == Long.class) {
                return type.equals("UINT32") ? integer(0, 0xFFFFFFFFL) : integer(Long.MIN_VALUE, Long.MAX_VALUE);
            }
            throw new IllegalStateException("no value for " + javaClass + " of " + name);
        }

        private double edge(double lowest, double highest) {
            return variant.numbers == Numbers.LOWEST ? lowest : highest;
        }

        private long integer(long lowest, long highest) {
            switch (variant.numbers) {
                case LOWEST:
                    return lowest;
                case HIGHEST:
                    return highest;
                case DEFAULT:
                    return 0;
                default:
                    long[] edges = {0, 1, Math.max(lowest, -1), lowest, highest};
                    int choice = random.nextInt(2 * edges.length);
                    if (choice < edges.length) {
                        return edges[choice];
                    }
                    long range = highest - lowest + 1;
                    return range <= 0 ? random.nextLong() : lowest + Math.floorMod(random.nextLong(), range);
            }
        }

        String text(int size) {
            StringBuilder text = new StringBuilder();
            int left = size;
            if (left >= 2 && random.nextInt(3) == 0) {
                text.append('ß');
                left -= 2;
            }
            for (; left > 0; left--) {
                text.append((char) ('a' + random.nextInt(26)));
            }
            return text.toString();
        }

        private byte[] bytes(int size) {
            byte[] bytes = new byte[size];
            random.nextBytes(bytes);
            return bytes;
        }

        /** Kafka 4.3 has moved the class to another package. */
        private Object records(String packageName, int size) throws ReflectiveOperationException {
            Class<?> memoryRecords = Class.forName(packageName + ".MemoryRecords");
            return memoryRecords.getMethod("readableRecords", ByteBuffer.class).invoke(null, ByteBuffer.wrap(bytes(size)));
        }

        private Uuid uuid() {
            return switch (variant.numbers) {
                case DEFAULT -> Uuid.ZERO_UUID;
                case LOWEST -> new Uuid(Long.MIN_VALUE, Long.MIN_VALUE);
                case HIGHEST -> new Uuid(-1, -1);
                case MIXED -> new Uuid(random.nextLong(), random.nextLong());
            };
        }

        /** Tags that no Kafka version knows, with numbers and sizes of one byte and more. */
        void addUnknownTags(List<RawTaggedField> tags, boolean topLevel) {
            if (random.nextDouble() >= variant.unknownTags) {
                return;
            }
            tags.add(new RawTaggedField(77, bytes(0)));
            if (random.nextBoolean() || topLevel) {
                tags.add(new RawTaggedField(300, bytes(5)));
            }
            if (topLevel) {
                tags.add(new RawTaggedField(200_000, bytes(127)));
                tags.add(new RawTaggedField(Integer.MAX_VALUE - 1, bytes(130)));
            }
        }
    }

    static boolean isScalar(Class<?> javaClass) {
        return javaClass.isPrimitive() || javaClass == String.class || javaClass == Uuid.class;
    }

    static boolean isRecords(Class<?> javaClass) {
        return javaClass.getSimpleName().equals("BaseRecords");
    }

    static String uncapitalised(String name) {
        return name.substring(0, 1).toLowerCase(Locale.ROOT) + name.substring(1);
    }

    static final Map<String, Method> SETTERS = new TreeMap<>();

    /** The setter of a field; schemas write throttle_time_ms where the classes write setThrottleTimeMs. */
    static Method setter(Message message, String field) {
        String key = message.getClass().getName() + "." + field;
        return SETTERS.computeIfAbsent(key, ignored -> {
            String wanted = "set" + field.replace("_", "");
            List<Method> found = Arrays.stream(message.getClass().getMethods())
                    .filter(m -> m.getName().equalsIgnoreCase(wanted) && m.getParameterCount() == 1)
                    .toList();
            if (found.size() != 1) {
                throw new IllegalStateException(key + ": setters " + found);
            }
            return found.get(0);
        });
    }

    static Object get(Message message, String field) {
        try {
            return message.getClass().getMethod(field).invoke(message);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static void set(Message message, String field, Object value) {
        try {
            setter(message, field).invoke(message, value);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static boolean hasField(Schema schema, String name) {
        return Arrays.stream(schema.fields()).anyMatch(bound -> bound.def.name.equals(name));
    }

    /** Kafka 4 has a method for it, Kafka 3 does not. */
    static List<Field> tagged(TaggedFields section) {
        try {
            java.lang.reflect.Field fields = TaggedFields.class.getDeclaredField("fields");
            fields.setAccessible(true);
            List<Field> tagged = new ArrayList<>();
            ((Map<?, ?>) fields.get(section)).values().forEach(field -> tagged.add((Field) field));
            return tagged;
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    /** The paths of all arrays in a schema, outer ones first. */
    static void collectArrays(Schema schema, String path, Set<String> found) {
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields section) {
                tagged(section).forEach(field -> collectArrays(field, path, found));
            } else {
                collectArrays(bound.def, path, found);
            }
        }
    }

    static void collectArrays(Field field, String path, Set<String> found) {
        org.apache.kafka.common.protocol.types.Type type = field.type;
        String fieldPath = path + "." + field.name;
        if (type.arrayElementType().isPresent()) {
            found.add(fieldPath);
            type = type.arrayElementType().get();
        }
        if (type instanceof Schema schema) {
            collectArrays(schema, fieldPath, found);
        }
    }

    static List<Variant> variants(int apiKey, boolean response, int version, Schema schema, Random random) {
        List<Variant> variants = new ArrayList<>();
        Variant empty = new Variant("empty");
        empty.numbers = Numbers.DEFAULT;
        empty.arraySize = path -> 0;
        empty.textBytes = () -> 0;
        variants.add(empty);
        Variant nulls = new Variant("nulls");
        nulls.nulls = 1;
        variants.add(nulls);
        Variant lowest = new Variant("lowest numbers");
        lowest.numbers = Numbers.LOWEST;
        lowest.arraySize = path -> 2;
        lowest.textBytes = () -> 0;
        variants.add(lowest);
        Variant highest = new Variant("highest numbers");
        highest.numbers = Numbers.HIGHEST;
        highest.arraySize = path -> 3;
        highest.textBytes = () -> 1;
        variants.add(highest);
        for (int size : LONG) {
            Variant texts = new Variant("texts of " + size + " bytes");
            texts.arraySize = path -> 2;
            texts.textBytes = () -> size;
            variants.add(texts);
        }
        Set<String> arrays = new LinkedHashSet<>();
        collectArrays(schema, "", arrays);
        int turn = version;
        for (String array : arrays) {
            boolean all = response && ADDRESSED.contains(apiKey);
            int[] sizes = all ? LONG : new int[] {LONG[turn++ % LONG.length]};
            for (int size : sizes) {
                Variant many = new Variant(size + " elements in " + array.substring(1));
                many.arraySize = path -> path.equals(array) ? size : 1;
                variants.add(many);
            }
        }
        if (Arrays.stream(schema.fields()).anyMatch(bound -> bound.def.type instanceof TaggedFields)) {
            Variant tags = new Variant("unknown tags");
            tags.arraySize = path -> 2;
            tags.unknownTags = 1;
            variants.add(tags);
        }
        for (int i = 0; i < 4; i++) {
            Variant mixed = new Variant("mixed " + i);
            int[] sizes = {0, 1, 5, 20, 126, 127, 128};
            mixed.arraySize = path -> random.nextInt(4);
            mixed.textBytes = () -> sizes[random.nextInt(sizes.length)];
            mixed.nulls = 0.25;
            mixed.unknownTags = 0.25;
            variants.add(mixed);
        }
        if (response && ADDRESSED.contains(apiKey)) {
            addAddressVariants(variants);
        }
        return variants;
    }

    static void addAddressVariants(List<Variant> variants) {
        for (int count : new int[] {0, 1, 3}) {
            for (int hostBytes : count == 0 ? new int[] {1} : new int[] {1, 13, 126, 127, 128, 255}) {
                Variant addresses = new Variant(count + " addresses with hosts of " + hostBytes + " bytes");
                addresses.arraySize = path -> isAddresses(path) ? count : 2;
                addresses.hostBytes = hostBytes;
                variants.add(addresses);
            }
        }
        Variant failed = new Variant("failed lookups");
        failed.arraySize = path -> isAddresses(path) ? 3 : 1;
        failed.failedLookups = true;
        failed.hostBytes = 9;
        variants.add(failed);
        Variant tagged = new Variant("addresses among unknown tags");
        tagged.arraySize = path -> isAddresses(path) ? 3 : 1;
        tagged.unknownTags = 1;
        tagged.hostBytes = 9;
        variants.add(tagged);
    }

    static boolean isAddresses(String path) {
        return Set.of(".brokers", ".coordinators", ".node_endpoints").contains(path);
    }

    /** The objects with an address that clients will dial, in wire order. */
    static List<Message> addressed(int apiKey, int version, Message response) {
        List<Message> found = new ArrayList<>();
        String array =
                switch (apiKey) {
                    case PRODUCE, FETCH, SHARE_FETCH, SHARE_ACKNOWLEDGE -> "nodeEndpoints";
                    case METADATA, DESCRIBE_CLUSTER -> "brokers";
                    case FIND_COORDINATOR -> version < 4 ? null : "coordinators";
                    default -> "";
                };
        if (array == null) {
            found.add(response);
        } else if (!array.isEmpty()) {
            ((Collection<?>) get(response, array)).forEach(element -> found.add((Message) element));
        }
        return found;
    }

    static boolean mustBeRewritten(int apiKey, Message response, Message address) {
        boolean controllers = apiKey == DESCRIBE_CLUSTER && (byte) get(response, "endpointType") != 1;
        return !controllers && nodeId(apiKey, address) != -1;
    }

    static int nodeId(int apiKey, Message address) {
        return (int) get(address, apiKey == DESCRIBE_CLUSTER ? "brokerId" : "nodeId");
    }

    /** Makes each address either that of a node or, with node -1, no host, port -1, that of a look-up that failed. */
    static void setAddresses(int apiKey, List<Message> addresses, Variant variant, Filler filler) {
        for (int i = 0; i < addresses.size(); i++) {
            Message address = addresses.get(i);
            boolean nobody = nodeId(apiKey, address) < 0 || get(address, "host").equals("");
            if (variant.failedLookups ? i % 2 == 0 : nobody && variant.hostBytes < 0) {
                set(address, apiKey == DESCRIBE_CLUSTER ? "broker_id" : "node_id", -1);
                set(address, "host", "");
                set(address, "port", -1);
            } else if (variant.hostBytes >= 0) {
                set(address, apiKey == DESCRIBE_CLUSTER ? "broker_id" : "node_id", Math.max(nodeId(apiKey, address), 0));
                set(address, "host", filler.text(variant.hostBytes));
            }
        }
    }

    static byte[] serialised(Message header, short headerVersion, Message body, short version) {
        ObjectSerializationCache headerCache = new ObjectSerializationCache();
        ObjectSerializationCache bodyCache = new ObjectSerializationCache();
        int size = header.size(headerCache, headerVersion) + body.size(bodyCache, version);
        ByteBuffer buffer = ByteBuffer.allocate(4 + size);
        buffer.putInt(size);
        ByteBufferAccessor accessor = new ByteBufferAccessor(buffer);
        header.write(accessor, headerCache, headerVersion);
        body.write(accessor, bodyCache, version);
        if (buffer.hasRemaining()) {
            throw new IllegalStateException(body.getClass() + " is shorter than it says");
        }
        return buffer.array();
    }

    static void checkRoundTrip(byte[] frame, Message header, short headerVersion, Message body, short version)
            throws ReflectiveOperationException {
        ByteBufferAccessor accessor = new ByteBufferAccessor(ByteBuffer.wrap(frame, 4, frame.length - 4));
        Message headerAgain = header.getClass().getConstructor().newInstance();
        headerAgain.read(accessor, headerVersion);
        Message bodyAgain = body.getClass().getConstructor().newInstance();
        bodyAgain.read(accessor, version);
        if (accessor.remaining() != 0 || !Arrays.equals(frame, serialised(headerAgain, headerVersion, bodyAgain, version))) {
            throw new IllegalStateException(body.getClass() + " v" + version + " does not come back: " + body);
        }
    }

    /** One line of output. */
    static final class Line {
        private final StringBuilder json = new StringBuilder();
        private final byte[] frame;

        Line(byte[] frame) {
            this.frame = frame;
        }

        Line put(String name, Object value) {
            json.append(json.length() == 0 ? "{" : ", ").append('"').append(name).append("\": ");
            json.append(value instanceof String text ? quoted(text) : String.valueOf(value));
            return this;
        }

        Line putChanged(String name, byte[] changed) {
            int shorter = Math.min(frame.length, changed.length);
            int start = Arrays.mismatch(frame, changed);
            if (start < 0) {
                start = shorter;
            }
            int end = 0;
            while (end < shorter - start && frame[frame.length - 1 - end] == changed[changed.length - 1 - end]) {
                end++;
            }
            String between = HexFormat.of().formatHex(changed, start, changed.length - end);
            return put(name, List.of(start, quoted(between), end));
        }

        @Override
        public String toString() {
            return json + "}";
        }

        static String quoted(String text) {
            StringBuilder quoted = new StringBuilder("\"");
            for (char c : text.toCharArray()) {
                boolean plain = c >= ' ' && c < 127 && c != '"' && c != '\\';
                quoted.append(plain ? String.valueOf(c) : String.format("\\u%04x", (int) c));
            }
            return quoted.append('"').toString();
        }
    }

    static Line line(ApiMessageType api, short version, boolean response, Variant variant, byte[] frame) {
        return new Line(frame)
                .put("key", (int) api.apiKey())
                .put("name", api.name)
                .put("version", (int) version)
                .put("kind", response ? "response" : "request")
                .put("variant", variant.name)
                .put("header_version", (int) (response ? api.responseHeaderVersion(version) : api.requestHeaderVersion(version)))
                .put("frame", HexFormat.of().formatHex(frame));
    }

    static Line request(ApiMessageType api, short version, Schema schema, Variant variant, Random random, int turn)
            throws ReflectiveOperationException {
        Filler filler = new Filler(variant, version, random);
        ApiMessage body = api.newRequest();
        filler.fill(body, schema, "");
        short headerVersion = api.requestHeaderVersion(version);
        String clientId = headerVersion == 0 ? null : CLIENT_IDS[turn % CLIENT_IDS.length];
        RequestHeaderData header = new RequestHeaderData()
                .setRequestApiKey(api.apiKey())
                .setRequestApiVersion(version)
                .setCorrelationId((int) filler.integer(Integer.MIN_VALUE, Integer.MAX_VALUE))
                .setClientId(clientId);
        if (headerVersion == 2) {
            filler.addUnknownTags(header.unknownTaggedFields(), false);
        }
        byte[] frame = serialised(header, headerVersion, body, version);
        checkRoundTrip(frame, header, headerVersion, body, version);
        Line line = line(api, version, false, variant, frame)
                .put("correlation_id", header.correlationId())
                .put("client_id", clientId);
        if (body instanceof ProduceRequestData produce) {
            line.put("acks", (int) produce.acks());
        }
        if (body instanceof FetchRequestData fetch) {
            line.put("max_bytes", version < 3 ? null : fetch.maxBytes()).put("min_bytes", fetch.minBytes());
            fetch.setMaxBytes(Math.min(fetch.maxBytes(), CEILING_BYTES));
            fetch.setMinBytes(Math.min(fetch.minBytes(), fetch.maxBytes()));
            line.putChanged("clamped", serialised(header, headerVersion, body, version));
        }
        if (body instanceof ShareFetchRequestData fetch) {
            line.put("max_bytes", fetch.maxBytes()).put("min_bytes", fetch.minBytes());
            fetch.setMaxBytes(Math.min(fetch.maxBytes(), CEILING_BYTES));
            fetch.setMinBytes(Math.min(fetch.minBytes(), fetch.maxBytes()));
            line.putChanged("clamped", serialised(header, headerVersion, body, version));
        }
        if (STRICT_SINCE.containsKey((int) api.apiKey())) {
            boolean names = api.apiKey() == DELETE_TOPICS && version < 6;
            Collection<Object> topics = collection(body, names ? "topicNames" : "topics");
            List<Integer> left = left(topics.size(), random);
            int at = 0;
            for (Iterator<Object> iterator = topics.iterator(); iterator.hasNext(); at++) {
                iterator.next();
                if (left.contains(at)) {
                    iterator.remove();
                }
            }
            line.put("topics", at).put("left_out", left);
            line.putChanged("without", serialised(header, headerVersion, body, version));
        }
        return line;
    }

    static List<Integer> left(int size, Random random) {
        List<Integer> left = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            if (random.nextBoolean() || (i == size - 1 && left.isEmpty())) {
                left.add(i);
            }
        }
        return left;
    }

    @SuppressWarnings("unchecked")
    static Collection<Object> collection(Message message, String field) {
        return (Collection<Object>) get(message, field);
    }

    /** Puts results with error 89 at up to three places; returns the places. */
    static List<Integer> refuse(int key, int version, Message body, Random random) throws ReflectiveOperationException {
        String field = key == CREATE_TOPICS ? "topics" : key == DELETE_TOPICS ? "responses" : "results";
        Collection<Object> collection = collection(body, field);
        List<Object> results = new ArrayList<>(collection);
        for (Iterator<Object> iterator = collection.iterator(); iterator.hasNext(); ) {
            iterator.next();
            iterator.remove();
        }
        TreeSet<Integer> places = new TreeSet<>();
        int count = 1 + random.nextInt(3);
        while (places.size() < count) {
            places.add(random.nextInt(results.size() + count));
        }
        for (int place : places) {
            Message refused = refused(key);
            set(refused, "error_code", (short) 89);
            set(refused, "error_message", null);
            boolean byId = key == DELETE_TOPICS && version >= 6 && place % 2 == 1;
            set(refused, "name", byId ? null : "refused-" + place);
            if (byId) {
                set(refused, "topic_id", new Uuid(place, place));
            }
            results.add(place, refused);
        }
        collection.addAll(results);
        return new ArrayList<>(places);
    }

    static Message refused(int key) {
        if (key == CREATE_TOPICS) {
            return new CreateTopicsResponseData.CreatableTopicResult();
        }
        return key == DELETE_TOPICS
                ? new DeleteTopicsResponseData.DeletableTopicResult()
                : new CreatePartitionsResponseData.CreatePartitionsTopicResult();
    }

    static Line response(ApiMessageType api, short version, Schema schema, Variant variant, Random random)
            throws ReflectiveOperationException {
        int key = api.apiKey();
        Filler filler = new Filler(variant, version, random);
        ApiMessage body = api.newResponse();
        filler.fill(body, schema, "");
        List<Message> addresses = addressed(key, version, body);
        setAddresses(key, addresses, variant, filler);
        short headerVersion = api.responseHeaderVersion(version);
        ResponseHeaderData header =
                new ResponseHeaderData().setCorrelationId((int) filler.integer(Integer.MIN_VALUE, Integer.MAX_VALUE));
        if (headerVersion == 1) {
            filler.addUnknownTags(header.unknownTaggedFields(), false);
        }
        byte[] frame = serialised(header, headerVersion, body, version);
        checkRoundTrip(frame, header, headerVersion, body, version);
        Line line = line(api, version, true, variant, frame).put("correlation_id", header.correlationId());
        if (hasField(schema, "throttle_time_ms")) {
            int throttle = (int) get(body, "throttleTimeMs");
            line.put("throttle", throttle);
            set(body, "throttle_time_ms", Math.max(throttle, THROTTLE_MS));
            line.putChanged("throttled", serialised(header, headerVersion, body, version));
            set(body, "throttle_time_ms", throttle);
        }
        if (body instanceof FetchResponseData fetch) {
            FetchResponseData plain = fetch.duplicate();
            plain.setNodeEndpoints(new FetchResponseData.NodeEndpointCollection());
            line.put("charged_bytes", 4 + plain.size(new ObjectSerializationCache(), version));
        }
        if (body instanceof ShareFetchResponseData fetch) {
            ShareFetchResponseData plain = fetch.duplicate();
            plain.setNodeEndpoints(new ShareFetchResponseData.NodeEndpointCollection());
            line.put("charged_bytes", 4 + plain.size(new ObjectSerializationCache(), version));
        }
        if (STRICT_SINCE.getOrDefault(key, Integer.MAX_VALUE) <= version) {
            line.put("refused_at", refuse(key, version, body, random));
            line.putChanged("merged", serialised(header, headerVersion, body, version));
        }
        addresses.removeIf(address -> !mustBeRewritten(key, body, address));
        if (!addresses.isEmpty()) {
            line.put("endpoints", addresses.stream()
                    .map(a -> List.of(nodeId(key, a), Line.quoted((String) get(a, "host")), get(a, "port")))
                    .toList());
            line.putChanged("readdressed", readdressed(key, addresses, "proxy.example", header, headerVersion, body, version));
            line.putChanged("readdressed_long", readdressed(key, addresses, "h".repeat(130), header, headerVersion, body, version));
        }
        return line;
    }

    static byte[] readdressed(
            int key, List<Message> addresses, String host, Message header, short headerVersion, Message body, short version) {
        for (Message address : addresses) {
            set(address, "host", host);
            set(address, "port", 20000 + Math.floorMod(nodeId(key, address), 1000));
        }
        return serialised(header, headerVersion, body, version);
    }

    public static void main(String[] arguments) throws Exception {
        try (PrintStream out = new PrintStream(arguments[0], StandardCharsets.US_ASCII)) {
            for (ApiMessageType api : ApiMessageType.values()) {
                boolean withUnstable = false;
                short highest = api.highestSupportedVersion(withUnstable);
                for (short version = api.lowestSupportedVersion(); version <= highest; version++) {
                    writeVersion(api, version, out);
                }
            }
            if (out.checkError()) {
                throw new IllegalStateException("could not write " + arguments[0]);
            }
        }
        System.out.println(AppInfoParser.getVersion());
    }

    static void writeVersion(ApiMessageType api, short version, PrintStream out) throws ReflectiveOperationException {
        for (boolean response : new boolean[] {false, true}) {
            Schema schema = (response ? api.responseSchemas() : api.requestSchemas())[version];
            Random random = new Random(4L * (1000L * api.apiKey() + version) + (response ? 1 : 0));
            int turn = version;
            for (Variant variant : variants(api.apiKey(), response, version, schema, random)) {
                out.println(
                        response
                                ? response(api, version, schema, variant, random)
                                : request(api, version, schema, variant, random, turn++));
            }
        }
    }
}

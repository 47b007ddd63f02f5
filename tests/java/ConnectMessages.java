import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.transforms.predicates.HasHeaderKey;

/**
 * What a sink of Kafka Connect gets: JsonConverter with schemas, its converter of headers, and a predicate on them.
 *
 * Reads lines of a header and a message (in hexadecimal), separated by a blank, from the first file; writes one line for
 * each to the second. Separated by blanks: "usage" or "other" by HasHeaderKey, the name and the version of the schema,
 * and for each field its name, its type and its value, joined by colons. Values are texts in hexadecimal, whole numbers
 * in decimal, doubles as their bits, or "null". "-" where the converter throws.
 */
public final class ConnectMessages {
    private static final String TOPIC = "records";

    public static void main(String[] args) throws Exception {
        List<String> found = new ArrayList<>();
        try (JsonConverter values = new JsonConverter();
                SimpleHeaderConverter headers = new SimpleHeaderConverter();
                HasHeaderKey<SinkRecord> isUsage = new HasHeaderKey<>()) {
            values.configure(Map.of("schemas.enable", "true"), false);
            isUsage.configure(Map.of("name", "usage"));
            for (String line : Files.readAllLines(Path.of(args[0]))) {
                String[] parts = line.split(" ");
                SchemaAndValue value;
                try {
                    value = values.toConnectData(TOPIC, HexFormat.of().parseHex(parts[1]));
                } catch (org.apache.kafka.connect.errors.DataException e) {
                    found.add("-");
                    continue;
                }
                ConnectHeaders of = new ConnectHeaders();
                of.add(parts[0], headers.toConnectHeader(TOPIC, parts[0], new byte[0]));
                SinkRecord record = new SinkRecord(TOPIC, 0, null, null, value.schema(), value.value(), 0, null, null, of);
                found.add((isUsage.test(record) ? "usage " : "other ") + fields(record));
            }
        }
        Files.write(Path.of(args[1]), found);
    }

    private static String fields(SinkRecord record) {
        Schema schema = record.valueSchema();
        Struct struct = (Struct) record.value();
        struct.validate();
        StringBuilder text = new StringBuilder(schema.name() + " " + schema.version());
        for (Field field : schema.fields()) {
            text.append(' ').append(field.name()).append(':').append(field.schema().type());
            text.append(':').append(written(struct.get(field)));
        }
        return text.toString();
    }

    private static String written(Object value) {
        if (value instanceof Double number) {
            return Long.toHexString(Double.doubleToRawLongBits(number));
        }
        if (value instanceof String text) {
            return HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8));
        }
        return String.valueOf(value);
    }
}

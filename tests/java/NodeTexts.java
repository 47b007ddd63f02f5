import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.utils.Sanitizer;

/**
 * What Kafka makes of the names and numbers in znodes.
 *
 * Reads lines of an operation, a tab and a text (UTF-16, big-endian, in hexadecimal) from the first file and writes one
 * line for each to the second: the answer's text in the same form, or "-" where Kafka throws.
 *
 *   encode, decode   a name, by Kafka's Sanitizer
 *   long, double     a value, as the broker's quota handlers parse it, written in decimal or as the double's bits
 *   text             a double, given as its bits, as an admin client's value is written into a node
 */
public final class NodeTexts {
    public static void main(String[] args) throws Exception {
        List<String> answers = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] fields = line.split("\t", -1);
            String text = chars(fields[1]);
            try {
                String answer = answer(fields[0], text);
                answers.add(HexFormat.of().formatHex(answer.getBytes(StandardCharsets.UTF_16BE)));
            } catch (IllegalArgumentException e) {
                answers.add("-");
            }
        }
        Files.write(Path.of(args[1]), answers);
    }

    /** Not by a Charset, which would replace half a surrogate pair. */
    private static String chars(String hexadecimal) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < hexadecimal.length(); i += 4) {
            text.append((char) Integer.parseInt(hexadecimal.substring(i, i + 4), 16));
        }
        return text.toString();
    }

    private static String answer(String operation, String text) {
        switch (operation) {
            case "encode": return Sanitizer.sanitize(text);
            case "decode": return Sanitizer.desanitize(text);
            case "long": return Long.toString(Long.parseLong(text));
            case "double": return Long.toHexString(Double.doubleToLongBits(Double.parseDouble(text)));
            case "text": return Double.toString(Double.longBitsToDouble(Long.parseUnsignedLong(text, 16)));
            default: throw new AssertionError(operation);
        }
    }
}

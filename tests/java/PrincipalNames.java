import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * What a broker makes of the subjects of certificates.
 *
 * Reads lines of tab-separated fields from the first file and writes one line for each to the second: the answer's text
 * (UTF-16, big-endian, in hexadecimal), or "-" where the JDK or Kafka throws.
 *
 *   dn <DER of a Name in hexadecimal>   its RFC 2253 form
 *   name <rules> <subject>              the user, both texts as the answer's
 */
public final class PrincipalNames {
    public static void main(String[] args) throws Exception {
        List<String> answers = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] fields = line.split("\t", -1);
            try {
                answers.add(HexFormat.of().formatHex(answer(fields).getBytes(StandardCharsets.UTF_16BE)));
            } catch (Exception e) {
                answers.add("-");
            }
        }
        Files.write(Path.of(args[1]), answers);
    }

    private static String answer(String[] fields) throws Exception {
        if (fields[0].equals("dn")) {
            return new X500Principal(HexFormat.of().parseHex(fields[1])).getName();
        }
        return SslPrincipalMapper.fromRules(text(fields[1])).getName(text(fields[2]));
    }

    private static String text(String hexadecimal) {
        return new String(HexFormat.of().parseHex(hexadecimal), StandardCharsets.UTF_16BE);
    }
}

import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/**
 * Has a node take signed URLs as bearer tokens, as those of Amazon MSK do. It checks no signature: an access key that
 * ends with "WRONG" is not valid.
 */
public class SignedUrls implements AuthenticateCallbackHandler {
    private static final Pattern KEY = Pattern.compile("[?&]X-Amz-Credential=([A-Z0-9]+)%2F");

    @Override
    public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (!(callback instanceof OAuthBearerValidatorCallback validation)) {
                throw new UnsupportedCallbackException(callback);
            }
            String url = new String(Base64.getUrlDecoder().decode(validation.tokenValue()), StandardCharsets.UTF_8);
            Matcher found = KEY.matcher(url);
            if (found.find() && !found.group(1).endsWith("WRONG")) {
                validation.token(new Token(validation.tokenValue(), "IAM:" + found.group(1)));
            } else {
                validation.error("invalid_token", null, null);
            }
        }
    }

    @Override
    public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> jaas) {
    }

    @Override
    public void close() {
    }

    private record Token(String value, String principalName) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return System.currentTimeMillis() + 3_600_000;
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }
}

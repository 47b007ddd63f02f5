import java.nio.ByteBuffer;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.requests.AbstractResponse;

/** One line for each API: its key, and the versions whose answers have a client wait for their throttle time. */
public class ClientWaits {
    public static void main(String[] arguments) throws Exception {
        for (ApiKeys api : ApiKeys.values()) {
            StringBuilder line = new StringBuilder().append(api.id);
            short last = api.messageType.highestSupportedVersion(true);
            for (short version = api.messageType.lowestSupportedVersion(); version <= last; version++) {
                if (response(api, version).shouldClientThrottle(version)) line.append(' ').append(version);
            }
            System.out.println(line);
        }
    }

    /** An empty answer. Its class takes a buffer in some versions of Kafka, and what reads one in others. */
    private static AbstractResponse response(ApiKeys api, short version) throws Exception {
        ApiMessage message = api.messageType.newResponse();
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        ByteBufferAccessor accessor = new ByteBufferAccessor(buffer);
        message.write(accessor, cache, version);
        buffer.flip();
        for (var method : AbstractResponse.class.getMethods()) {
            if (method.getName().equals("parseResponse") && method.getParameterCount() == 3) {
                Object bytes = method.getParameterTypes()[1] == ByteBuffer.class ? buffer : accessor;
                return (AbstractResponse) method.invoke(null, api, bytes, version);
            }
        }
        throw new NoSuchMethodException("parseResponse");
    }
}

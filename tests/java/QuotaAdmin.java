import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterClientQuotasOptions;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;

/**
 * Describes and alters client quotas with Kafka's Admin client.
 *
 * <p>Reads requests from standard input and writes answers, as tests/go/quotas/main.go does.
 */
public final class QuotaAdmin {
    private static final ObjectMapper JSON = new ObjectMapper();

    static {
        JSON.getFactory().configure(JsonGenerator.Feature.ESCAPE_NON_ASCII, true);
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "client.id", "java-admin");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Admin admin = Admin.create(settings)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                JsonNode asked = JSON.readTree(line);
                JsonNode answer = asked.has("alter") ? alter(admin, asked) : describe(admin, asked);
                System.out.println(JSON.writeValueAsString(answer));
            }
        }
    }

    private static JsonNode alter(Admin admin, JsonNode asked) throws InterruptedException {
        List<ClientQuotaAlteration> alterations = new ArrayList<>();
        for (JsonNode entry : asked.get("alter")) {
            List<ClientQuotaAlteration.Op> operations = new ArrayList<>();
            entry.get("ops").fields().forEachRemaining(op -> {
                Double value = op.getValue().isNull() ? null : op.getValue().doubleValue();
                operations.add(new ClientQuotaAlteration.Op(op.getKey(), value));
            });
            alterations.add(new ClientQuotaAlteration(entity(entry.get("entity")), operations));
        }
        AlterClientQuotasOptions options = new AlterClientQuotasOptions().validateOnly(asked.path("validate_only").asBoolean());
        ArrayNode told = JSON.createArrayNode();
        for (Map.Entry<ClientQuotaEntity, KafkaFuture<Void>> result :
                admin.alterClientQuotas(alterations, options).values().entrySet()) {
            ObjectNode one = told.addObject();
            one.set("entity", JSON.valueToTree(result.getKey().entries()));
            try {
                result.getValue().get();
                one.put("code", 0).putNull("message");
            } catch (ExecutionException refused) {
                one.put("code", Errors.forException(refused.getCause()).code());
                one.put("message", refused.getCause().getMessage());
            }
        }
        return told;
    }

    private static JsonNode describe(Admin admin, JsonNode asked) throws InterruptedException {
        List<ClientQuotaFilterComponent> components = new ArrayList<>();
        for (JsonNode component : asked.get("describe")) {
            String type = component.get("type").asText();
            components.add(switch (component.get("match").asText()) {
                case "exact" -> ClientQuotaFilterComponent.ofEntity(type, component.get("name").asText());
                case "default" -> ClientQuotaFilterComponent.ofDefaultEntity(type);
                default -> ClientQuotaFilterComponent.ofEntityType(type);
            });
        }
        boolean strict = asked.path("strict").asBoolean();
        ClientQuotaFilter filter =
                strict ? ClientQuotaFilter.containsOnly(components) : ClientQuotaFilter.contains(components);
        ObjectNode told = JSON.createObjectNode();
        ArrayNode entries = told.putArray("entries");
        try {
            admin.describeClientQuotas(filter).entities().get().forEach((entity, values) -> {
                ObjectNode one = entries.addObject();
                one.set("entity", JSON.valueToTree(entity.entries()));
                one.set("values", JSON.valueToTree(values));
            });
            told.put("code", 0);
        } catch (ExecutionException refused) {
            told.put("code", Errors.forException(refused.getCause()).code());
        }
        return told;
    }

    private static ClientQuotaEntity entity(JsonNode names) {
        Map<String, String> entries = new HashMap<>();
        names.fields().forEachRemaining(part -> entries.put(part.getKey(), part.getValue().textValue()));
        return new ClientQuotaEntity(entries);
    }
}

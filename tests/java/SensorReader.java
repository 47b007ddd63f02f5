import java.io.BufferedReader;
import java.io.InputStreamReader;
import javax.management.InstanceNotFoundException;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Reads attributes of MBeans for as long as somebody asks.
 *
 * <p>Argument: host:port of the JMX agent. Each line of stdin is an object name, a tab and an attribute; the answer is a
 * line with its value, or "-" where there is no such object.
 */
public final class SensorReader {
    public static void main(String[] arguments) throws Exception {
        JMXServiceURL url = new JMXServiceURL("service:jmx:rmi:///jndi/rmi://" + arguments[0] + "/jmxrmi");
        MBeanServerConnection beans = JMXConnectorFactory.connect(url).getMBeanServerConnection();
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] fields = line.split("\t");
            try {
                System.out.println(beans.getAttribute(new ObjectName(fields[0]), fields[1]));
            } catch (InstanceNotFoundException e) {
                System.out.println("-");
            }
            System.out.flush();
        }
    }
}

// One member of a consumer group with KafkaJS: it tells when it joins, and each record that it reads.
//
//   node main.js BOOTSTRAP CLIENT_ID GROUP TOPIC
//
// Lines out: "joined" whenever it has got its partitions, and "record PARTITION OFFSET BYTES".

const { Kafka, logLevel } = require("kafkajs");

async function main([bootstrap, clientId, groupId, topic]) {
  const kafka = new Kafka({ clientId, brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
  const consumer = kafka.consumer({ groupId });
  consumer.on(consumer.events.GROUP_JOIN, () => process.stdout.write("joined\n"));
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ partition, message }) => {
      process.stdout.write(`record ${partition} ${message.offset} ${message.value.length}\n`);
    },
  });
}

main(process.argv.slice(2));

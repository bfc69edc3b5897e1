// The published client and server, used as their package shows.
//   node real_client.js call PORT CMD TWINS EXP RETRY PAYLOAD   prints the replies as one JSON line
//   node real_client.js serve PORT                              answers demo.echo and demo.fail
"use strict";
const { MessageBusClient, MessageBusServer } = require("ts-rmb-redis-client");

// Payloads that are no argument of a command line.
const PAYLOADS = { "@half-a-mebibyte": '"' + "x".repeat(512 * 1024 - 2) + '"' };

async function call(port, cmd, twins, exp, retry, payload) {
  const client = new MessageBusClient(port);
  const message = client.prepare(cmd, twins, exp, retry);
  await client.send(message, PAYLOADS[payload] || payload);
  const replies = await client.read(message);
  // The client's connection would keep the program alive; a large line leaves a pipe in several pieces.
  process.stdout.write("REPLIES " + JSON.stringify(replies) + "\n", () => process.exit(0));
}

function serve(port) {
  const server = new MessageBusServer(port);
  server.withHandler("demo.echo", async (message, payload) => ({ got: payload, from: message.src }));
  server.withHandler("demo.fail", async () => {
    throw new Error("no luck");
  });
  server.run();
}

const [verb, port, cmd, twins, exp, retry, payload] = process.argv.slice(2);
if (verb === "call") {
  call(Number(port), cmd, twins.split(",").map(Number), Number(exp), Number(retry), payload);
} else {
  serve(Number(port));
}

// A client and a handler written as the documents describe them: nothing but Redis lists and JSON.
//   node documents.js first PORT SIDE TWINS     a whole message of the first generation; SIDE is lPush or rPush
//   node documents.js minimal PORT SIDE TWINS   the five fields of the second document
//   node documents.js handler PORT CMD QUEUE    answers CMD on QUEUE: the message's own `ret`, or the reply queue
"use strict";
const { createClient } = require("redis");
const { randomUUID } = require("crypto");

const encode = (text) => Buffer.from(text).toString("base64");
const decode = (text) => Buffer.from(text, "base64").toString();

async function connect(port) {
  const client = createClient({ socket: { host: "127.0.0.1", port: Number(port) } });
  await client.connect();
  return client;
}

async function ask(port, side, message, count) {
  const client = await connect(port);
  await client[side]("msgbus.system.local", JSON.stringify(message));
  const replies = [];
  for (let i = 0; i < count; i++) {
    const found = await client.blPop(message.ret, 15);
    if (found === null) break;
    const reply = JSON.parse(found.element);
    reply.dat = decode(reply.dat);
    replies.push(reply);
  }
  process.stdout.write("REPLIES " + JSON.stringify(replies) + "\n");
  await client.quit();
}

function first(twins) {
  return {
    ver: 1, uid: "", cmd: "wallet.stellar.balance.tft", exp: 3600, try: 4,
    dat: encode("GA7OPN4A3JNHLPHPEWM4PJDOYYDYNZOM7ES6YL3O7NC3PRY3V3UX6ANM"),
    src: 0, dst: twins, ret: randomUUID(), shm: "",
    now: Math.floor(Date.now() / 1000), err: "",
  };
}

function minimal(twins) {
  return {
    id: randomUUID(), dst: twins.length === 1 ? twins[0] : twins,
    cmd: "wallet.stellar.balance.tft", data: encode("GA7O"), ret: randomUUID(),
  };
}

async function handle(port, cmd, queue) {
  const client = await connect(port);
  process.stdout.write("READY\n");
  for (;;) {
    const found = await client.blPop("msgbus." + cmd, 0);
    const message = JSON.parse(found.element);
    const answer = { ...message, src: message.dst[0], dst: [message.src] };
    answer.dat = encode("balance of " + decode(message.dat));
    await client.lPush(queue === "ret" ? message.ret : "msgbus.system.reply", JSON.stringify(answer));
  }
}

const [verb, port, ...rest] = process.argv.slice(2);
if (verb === "handler") {
  handle(port, rest[0], rest[1]);
} else {
  const twins = rest[1].split(",").map(Number);
  ask(port, rest[0], verb === "first" ? first(twins) : minimal(twins), twins.length);
}

// Node: the smallest window it allows, its default, and many streams at once.
import http2 from "node:http2";

const [origin, length] = process.argv.slice(2);
const connect = (settings) =>
  http2.connect(origin, { rejectUnauthorized: false, settings });

function download(session, path = "/large.bin") {
  return new Promise((resolve, reject) => {
    const stream = session.request({ ":path": path });
    let count = 0;
    stream.on("data", (chunk) => (count += chunk.length));
    stream.on("end", () => resolve(count));
    stream.on("error", reject);
    stream.end();
  });
}

function upload(session, writes, size) {
  return new Promise((resolve, reject) => {
    const stream = session.request({ ":path": "/upload", ":method": "POST" });
    let answer = "";
    stream.on("data", (chunk) => (answer += chunk));
    stream.on("end", () => resolve(Number(answer)));
    stream.on("error", reject);
    const write = (left) =>
      left === 0 ? stream.end() : stream.write(Buffer.alloc(size), () => write(left - 1));
    write(writes);
  });
}

function expect(what, count, wanted) {
  if (count !== wanted) {
    console.log(`${what}: ${count} of ${wanted}`);
    process.exit(1);
  }
}

for (const initialWindowSize of [1024, 16384, 65535]) {
  const session = connect({ initialWindowSize });
  session.on("error", (error) => expect(`a window of ${initialWindowSize}`, error.message, ""));
  expect(`a window of ${initialWindowSize}`, await download(session), Number(length));
  session.close();
}
const session = connect({});
const all = await Promise.all(Array.from({ length: 50 }, () => download(session)));
all.forEach((count) => expect("50 at once", count, Number(length)));
expect("an upload of small writes", await upload(session, 5000, 20), 100_000);
session.close();

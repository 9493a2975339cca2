// For developing the page only: serves web/ through Vite, with a made-up pooler behind the API.
//
//     node dev/serve.mjs [port]              the page on a pooler that plays a day in two minutes
//     PGWEIR=http://127.0.0.1:9127 node ...  the page on a real one

import http from "node:http";
import { createServer } from "vite";

import { Play } from "./play.mjs";

const port = Number(process.argv[2] ?? 5199);
const real = process.env.PGWEIR;
const play = new Play();

const vite = await createServer({ root: new URL("..", import.meta.url).pathname, server: { middlewareMode: true, hmr: { port: port + 1 } }, appType: "spa" });

http
  .createServer((request, response) => {
    const path = request.url ?? "/";
    if (!/^\/(api|metrics|healthz|readyz)/.test(path)) return vite.middlewares(request, response);
    if (real) return forward(request, response);
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", () => {
      const { status = 200, value, headers = {} } = play.answer(request.method, new URL(path, "http://x"), body, request.headers);
      response.writeHead(status, { "Content-Type": "application/json", ...headers });
      response.end(JSON.stringify(value));
    });
  })
  .listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}`));

function forward(request, response) {
  const onward = http.request(new URL(request.url, real), { method: request.method, headers: { ...request.headers, host: new URL(real).host, origin: real } }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  onward.on("error", (fault) => response.destroy(fault));
  request.pipe(onward);
}

// The built page lies in dist/ and is committed: building pgweir needs no Node.
import { defineConfig, type Plugin } from "vite";

/** Files in this repository end with a line's end, those that are made too. */
const lineEnd: Plugin = {
  name: "line-end",
  generateBundle(_, bundle) {
    for (const file of Object.values(bundle)) {
      if (file.type === "chunk") file.code = file.code.trimEnd() + "\n";
      else if (typeof file.source === "string") file.source = file.source.trimEnd() + "\n";
    }
  },
};

export default defineConfig({
  base: "./",
  plugins: [lineEnd],
  build: {
    outDir: "dist",
    emptyOutDir: true,
    target: "es2022",
    // One script and one style sheet: the page is small, and a file less is a round trip less.
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: true,
    sourcemap: false,
  },
  test: {
    include: ["test/**/*.test.ts"],
    environment: "node",
  },
} as Parameters<typeof defineConfig>[0]);

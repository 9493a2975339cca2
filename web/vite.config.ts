// The built page lies in dist/ and is committed: whoever builds pgweir needs no Node.
import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
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

"use strict";
// Starts the program of a package, so that neither npx nor the network is needed. Written by `toolhost mcp import`.
const { existsSync, readFileSync } = require("node:fs");
const { join } = require("node:path");
const [name, program] = SERVER_WORDS;
const places = require.resolve.paths(name).map((path) => join(path, name));
const folder = places.find((path) => existsSync(join(path, "package.json")));
if (!folder) throw new Error(`the package ${name} is not installed`);
const { bin } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
const programs = typeof bin === "string" ? { [name]: bin } : (bin ?? {});
const all = Object.values(programs);
const file = programs[program] ?? (all.length === 1 && !program ? all[0] : programs[name.split("/").pop()]);
if (!file) throw new Error(`the package ${name} has no program ${program ?? ""}`);
process.argv[1] = join(folder, file);
require("node:module").runMain();

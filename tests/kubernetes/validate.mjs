// Compare resources of cert-manager and CloudNativePG, a JSON list on stdin, with their schemas.
// It runs from the folder of node_modules, and prints a line for each resource.

import { readFileSync } from "node:fs";
import { Certificate, Issuer } from "@kubernetes-models/cert-manager/cert-manager.io/v1";
import { Cluster } from "@kubernetes-models/cloudnative-pg/postgresql.cnpg.io/v1";

const kinds = { Certificate, Cluster, Issuer };
for (const resource of JSON.parse(readFileSync(0, "utf8"))) {
  const name = `${resource.kind} ${resource.metadata.name}`;
  try {
    new kinds[resource.kind](resource).validate();
    console.log(`${name}: fits`);
  } catch (error) {
    console.log(`${name}: ${error.message}`);
    process.exitCode = 1;
  }
}

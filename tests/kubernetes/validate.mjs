// Compare resources of cert-manager, CloudNativePG and the Prometheus operator, a JSON list on stdin,
// with their schemas.
// It runs from the folder of node_modules, and prints a line for each resource.

import { readFileSync } from "node:fs";
import { Certificate, Issuer } from "@kubernetes-models/cert-manager/cert-manager.io/v1";
import { Cluster } from "@kubernetes-models/cloudnative-pg/postgresql.cnpg.io/v1";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const kinds = { Certificate, Cluster, Issuer, PodMonitor };
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

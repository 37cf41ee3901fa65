#!/usr/bin/env bash
# Gives the alerts and the recorded figures to the Prometheus operator, and the dashboards to Grafana's
# sidecar: monitoring.sh [NAMESPACE]. Both are the files that compose mounts.
set -euo pipefail

namespace=${1:-monitoring}
deploy=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rules=${RULES:-$deploy/prometheus/rules}
dashboards=${DASHBOARDS:-$deploy/grafana/json}

# A rule file is the `spec` of a PrometheusRule.
for file in "$rules"/*.yml; do
  {
    printf 'apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n'
    printf 'metadata: {name: specgate-%s}\nspec:\n' "$(basename "$file" .yml)"
    sed 's/^/  /' "$file"
  } | kubectl --namespace "$namespace" apply -f -
done

# By the server: the dashboards are too long for the annotation that a plain apply writes.
kubectl create configmap specgate-dashboards --namespace "$namespace" \
  --from-file="$dashboards" --dry-run=client --output=yaml \
  | kubectl label --local --filename=- grafana_dashboard=1 --output=yaml \
  | kubectl --namespace "$namespace" apply --server-side -f -

{{- define "tpx.name" -}}
{{- if eq .Release.Name .Chart.Name }}{{ .Chart.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tpx.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tpx.labels" -}}
{{ include "tpx.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "tpx.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "tpx.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* the scale target of both autoscalers */ -}}
{{- define "tpx.target" -}}
apiVersion: apps/v1
kind: {{ .Values.kind }}
name: {{ include "tpx.name" . }}
{{- end }}

{{- define "tpx.models" -}}
{{- if and .Values.repository.url .Values.repository.volume }}{{ fail "repository: either url or volume, not both" }}{{ end }}
{{- if .Values.repository.url }}{{ .Values.repository.url }}
{{- else if .Values.repository.volume }}{{ printf "/models/%s" .Values.repository.path | trimSuffix "/" }}
{{- else }}{{ fail "repository: set url (an object store) or volume (any Kubernetes volume source)" }}
{{- end }}
{{- end }}

{{- /* the options of tpx serve: those of the chart, and over them those of the user */ -}}
{{- define "tpx.options" -}}
{{- $options := dict
  "model_repository" (include "tpx.models" .)
  "http_address" "0.0.0.0"
  "grpc_address" "0.0.0.0"
  "drain_secs" .Values.drainSeconds
  "exit_timeout_secs" .Values.exitSeconds
  "metrics_config" "histogram_latencies=true" }}
{{- if .Values.tls.secretName }}
{{- range $endpoint := list "http" "grpc" }}
{{- $_ := set $options (print $endpoint "_use_ssl") true }}
{{- $_ := set $options (print $endpoint "_server_cert") "/tls/tls.crt" }}
{{- $_ := set $options (print $endpoint "_server_key") "/tls/tls.key" }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.options }}
{{- $_ := set $options (replace "-" "_" $name) $value }}
{{- end }}
{{- toYaml $options }}
{{- end }}

{{- /* a value as a variable has it: a line for each item of a list, and no number such as 1e+06 */ -}}
{{- define "tpx.text" -}}
{{- if kindIs "slice" . }}{{ join "\n" . }}{{ else if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

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

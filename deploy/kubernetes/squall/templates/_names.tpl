{{- define "squall.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "squall.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "squall.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "squall.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "squall.selector" -}}
app.kubernetes.io/name: {{ include "squall.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "squall.labels" -}}
{{ include "squall.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "squall.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* The configuration of a workload: what is common, under what the workload itself needs. */}}
{{- define "squall.config" -}}
{{- $own := dict
  "sources" .sources
  "spool" (dict "dir" "/var/lib/squall" "max_bytes" .spool.max_bytes "max_age" .spool.max_age)
  "web" (dict "listen" "0.0.0.0:9177")
  "fleet" (merge (dict "node" "${NODE_NAME}") (default dict .root.Values.config.fleet)) -}}
{{- toYaml (merge $own .root.Values.config) -}}
{{- end -}}

{{/* What a spool of some max_bytes may need on disk: a Pod that goes over the limit of an emptyDir is evicted. */}}
{{- define "squall.spoolLimit" -}}
{{- $mebibytes := dict "KiB" 1 "MiB" 1 "GiB" 1024 "TiB" 1048576 -}}
{{- $n := mul (int64 (regexFind "^[0-9]+" .)) (get $mebibytes (regexFind "[KMGT]iB$" .)) -}}
{{- printf "%dMi" (add (div (mul $n 5) 4) 64) -}}
{{- end -}}

{{/* A Pod of squall. */}}
{{- define "squall.pod" -}}
metadata:
  labels:
    {{- include "squall.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with .values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: squall
    checksum/config: {{ include "squall.config" . | sha256sum }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "squall.fullname" .root }}-{{ .component }}
  automountServiceAccountToken: {{ eq .component "watch" }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: {{ ne (int .values.user.uid) 0 }}
    runAsUser: {{ .values.user.uid }}
    runAsGroup: {{ .values.user.gid }}
    {{- /* Of the Secret and of a claimed volume; the node's folders stay as they are. */}}
    fsGroup: {{ .values.user.gid }}
    seccompProfile: {type: RuntimeDefault}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  containers:
    - name: squall
      image: {{ include "squall.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: [run, --config, /etc/squall/squall.yaml]
      env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        {{- with .values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: http, containerPort: 9177, protocol: TCP}
      startupProbe:
        httpGet: {path: /-/healthy, port: http}
        {{- toYaml .root.Values.probes.startup | nindent 8 }}
      livenessProbe:
        httpGet: {path: /-/healthy, port: http}
        {{- toYaml .root.Values.probes.liveness | nindent 8 }}
      readinessProbe:
        httpGet: {path: /-/ready, port: http}
        {{- toYaml .root.Values.probes.readiness | nindent 8 }}
      resources:
        {{- toYaml .values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: config, mountPath: /etc/squall/squall.yaml, subPath: squall.yaml, readOnly: true}
        - {name: spool, mountPath: /var/lib/squall}
        {{- if .root.Values.secretName }}
        - {name: secrets, mountPath: /etc/squall/secrets, readOnly: true}
        {{- end }}
        {{- if eq .component "logs" }}
        - {name: logs, mountPath: /var/log, readOnly: true}
        {{- if .values.dockerContainers }}
        - {name: docker, mountPath: /var/lib/docker/containers, readOnly: true}
        {{- end }}
        {{- end }}
        {{- with .values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "squall.fullname" .root }}-{{ .component }}}
    - name: spool
      {{- if eq .component "logs" }}
      hostPath: {path: {{ .values.spool.hostPath }}, type: DirectoryOrCreate}
      {{- else }}
      {{- toYaml (default (dict "emptyDir" (dict "sizeLimit" (include "squall.spoolLimit" .values.spool.max_bytes))) .values.spool.volume) | nindent 6 }}
      {{- end }}
    {{- if .root.Values.secretName }}
    - name: secrets
      secret: {secretName: {{ .root.Values.secretName }}, defaultMode: 0440}
    {{- end }}
    {{- if eq .component "logs" }}
    - name: logs
      hostPath: {path: /var/log, type: Directory}
    {{- if .values.dockerContainers }}
    - name: docker
      hostPath: {path: /var/lib/docker/containers, type: Directory}
    {{- end }}
    {{- end }}
    {{- with .values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The workloads that are on, each with what its templates need: {"list": [...]}. */}}
{{- define "squall.workloads" -}}
{{- $list := list -}}
{{- if .Values.logs.enabled -}}{{- $list = append $list "logs" -}}{{- end -}}
{{- if .Values.watch.enabled -}}{{- $list = append $list "watch" -}}{{- end -}}
{{- toJson (dict "list" $list) -}}
{{- end -}}

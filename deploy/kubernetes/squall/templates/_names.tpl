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
  "fleet" (merge (include "squall.fleet" . | fromYaml) (default dict .root.Values.config.fleet)) -}}
{{- toYaml (merge $own .root.Values.config) -}}
{{- end -}}

{{/* What a spool of some max_bytes may need on disk: a Pod that goes over the limit of an emptyDir is evicted. */}}
{{- define "squall.spoolLimit" -}}
{{- $mebibytes := dict "KiB" 1 "MiB" 1 "GiB" 1024 "TiB" 1048576 -}}
{{- $n := mul (int64 (regexFind "^[0-9]+" .)) (get $mebibytes (regexFind "[KMGT]iB$" .)) -}}
{{- printf "%dMi" (add (div (mul $n 5) 4) 64) -}}
{{- end -}}

{{/* What a workload is in its fleet. Names are those of nodes, so that a Pod that comes after another is the same one. */}}
{{- define "squall.fleet" -}}
{{- $fleet := .root.Values.fleet -}}
{{- if not $fleet.mode -}}
node: ${NODE_NAME}
{{- else -}}
node: {{ if eq .component "aggregate" }}${POD_NAME}{{ else if eq .component "logs" }}${NODE_NAME}{{ else if gt (int .root.Values.watch.replicas) 1 }}watch.${POD_NAME}{{ else }}watch{{ end }}
{{- if eq $fleet.mode "external" }}
nats: {{ required "fleet.external.nats is empty: where is NATS?" $fleet.external.nats | quote }}
{{- with $fleet.external.credentialsSecret }}
credentials_file: /etc/squall/fleet/credentials
{{- end }}
{{- with $fleet.external.nkeySecret }}
nkey_file: /etc/squall/fleet/nkey
{{- end }}
{{- with $fleet.external.caSecret }}
ca_file: /etc/squall/fleet/ca/ca.crt
{{- end }}
{{- else }}
{{- $e := $fleet.embedded }}
{{- $peers := include "squall.peers" .root }}
{{- if eq .component "aggregate" }}
embedded: true
replicas: {{ $e.replicas }}
server:
  listen: 0.0.0.0:4222
  {{- if gt (int $e.replicas) 1 }}
  cluster_listen: 0.0.0.0:6222
  routes:
    {{- range $i := until (int $e.replicas) }}
    - nats-route://{{ include "squall.fullname" $.root }}-aggregate-{{ $i }}.{{ $peers }}:6222
    {{- end }}
  {{- end }}
  {{- if $e.tlsSecret }}
  ca_file: /etc/squall/fleet/ca/ca.crt
  cert_file: /etc/squall/fleet/tls/tls.crt
  key_file: /etc/squall/fleet/tls/tls.key
  {{- end }}
  {{- if $e.nkeySecret }}
  nodes:
    {{- toYaml $e.nkeys.nodes | nindent 4 }}
  aggregators:
    - {{ $e.nkeys.aggregate }}
  {{- end }}
{{- else }}
nats: nats://{{ $peers }}:4222
{{- end }}
{{- with $e.nkeySecret }}
nkey_file: /etc/squall/fleet/nkey
{{- end }}
{{- with $e.tlsSecret }}
ca_file: /etc/squall/fleet/ca/ca.crt
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The name under which the aggregators that embed NATS are found, with a Pod's name before it one of them. */}}
{{- define "squall.peers" -}}
{{ include "squall.fullname" . }}-aggregate.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* What a Pod mounts of the fleet's Secrets: a JSON list of {name, secret, key or items, path}. A node sees its own seed alone. */}}
{{- define "squall.fleet.secrets" -}}
{{- $fleet := .root.Values.fleet -}}
{{- $list := list -}}
{{- $group := ternary "aggregate" "nodes" (eq .component "aggregate") -}}
{{- if eq $fleet.mode "external" -}}
{{- with $fleet.external.credentialsSecret -}}
{{- $list = append $list (dict "name" "fleet-credentials" "secret" . "mount" (dict "mountPath" "/etc/squall/fleet/credentials" "subPath" (printf "%s.creds" $group))) -}}
{{- end -}}
{{- with $fleet.external.nkeySecret -}}
{{- $list = append $list (dict "name" "fleet-nkey" "secret" . "mount" (dict "mountPath" "/etc/squall/fleet/nkey" "subPath" (printf "%s.nk" $group))) -}}
{{- end -}}
{{- with $fleet.external.caSecret -}}
{{- $list = append $list (dict "name" "fleet-ca" "secret" . "keys" (list "ca.crt") "mount" (dict "mountPath" "/etc/squall/fleet/ca")) -}}
{{- end -}}
{{- else if eq $fleet.mode "embedded" -}}
{{- with $fleet.embedded.nkeySecret -}}
{{- $key := dict "aggregate" "aggregate.nk" "logs" "$(NODE_NAME).nk" "watch" "watch.nk" -}}
{{- $list = append $list (dict "name" "fleet-nkey" "secret" . "mount" (dict "mountPath" "/etc/squall/fleet/nkey" "subPathExpr" (get $key $.component))) -}}
{{- end -}}
{{- with $fleet.embedded.tlsSecret -}}
{{- $list = append $list (dict "name" "fleet-ca" "secret" . "keys" (list "ca.crt") "mount" (dict "mountPath" "/etc/squall/fleet/ca")) -}}
{{- if eq $.component "aggregate" -}}
{{- $list = append $list (dict "name" "fleet-tls" "secret" . "keys" (list "tls.crt" "tls.key") "mount" (dict "mountPath" "/etc/squall/fleet/tls")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "list" $list) -}}
{{- end -}}

{{/* A Pod of squall. */}}
{{- define "squall.pod" -}}
{{- $secrets := (include "squall.fleet.secrets" . | fromJson).list -}}
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
      args: [{{ ternary "aggregate" "run" (eq .component "aggregate") }}, --config, /etc/squall/squall.yaml]
      env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        {{- if or (eq .component "aggregate") (and (eq .component "watch") (gt (int .root.Values.watch.replicas) 1)) }}
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- end }}
        {{- with .values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: http, containerPort: 9177, protocol: TCP}
        {{- range .ports }}
        - {name: {{ .name }}, containerPort: {{ .port }}, protocol: TCP}
        {{- end }}
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
        {{- range $secrets }}
        - {name: {{ .name }}{{ range $k, $v := .mount }}, {{ $k }}: {{ $v }}{{ end }}, readOnly: true}
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
    {{- if not .claimed }}
    - name: spool
      {{- if eq .component "logs" }}
      hostPath: {path: {{ .values.spool.hostPath }}, type: DirectoryOrCreate}
      {{- else }}
      {{- toYaml (default (dict "emptyDir" (dict "sizeLimit" (include "squall.spoolLimit" .values.spool.max_bytes))) .values.spool.volume) | nindent 6 }}
      {{- end }}
    {{- end }}
    {{- if .root.Values.secretName }}
    - name: secrets
      secret: {secretName: {{ .root.Values.secretName }}, defaultMode: 0440}
    {{- end }}
    {{- range $secrets }}
    - name: {{ .name }}
      secret:
        secretName: {{ .secret }}
        defaultMode: 0440
        {{- with .keys }}
        items:
          {{- range . }}
          - {key: {{ . }}, path: {{ . }}}
          {{- end }}
        {{- end }}
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
  {{- with default .apart .values.affinity }}
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
{{- if .Values.fleet.mode -}}{{- $list = append $list "aggregate" -}}{{- end -}}
{{- toJson (dict "list" $list) -}}
{{- end -}}

{{/* Pods with these labels on different nodes, if there are as many. */}}
{{- define "squall.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- toYaml . | nindent 12 }}
{{- end -}}

module triton-gateway/tests/cluster/programs/kserve

go 1.25.8

require (
	cel.dev/expr v0.25.1
	cloud.google.com/go v0.121.0
	cloud.google.com/go/auth v0.16.5
	cloud.google.com/go/auth/oauth2adapt v0.2.8
	cloud.google.com/go/compute/metadata v0.9.0
	cloud.google.com/go/iam v1.5.2
	cloud.google.com/go/monitoring v1.24.2
	cloud.google.com/go/storage v1.52.0
	dario.cat/mergo v1.0.2
	github.com/Azure/azure-sdk-for-go/sdk/azcore v1.19.1
	github.com/Azure/azure-sdk-for-go/sdk/azidentity v1.13.0
	github.com/Azure/azure-sdk-for-go/sdk/internal v1.11.2
	github.com/Azure/azure-sdk-for-go/sdk/storage/azblob v1.6.2
	github.com/AzureAD/microsoft-authentication-library-for-go v1.5.0
	github.com/GoogleCloudPlatform/opentelemetry-operations-go/detectors/gcp v1.30.0
	github.com/GoogleCloudPlatform/opentelemetry-operations-go/exporter/metric v0.51.0
	github.com/GoogleCloudPlatform/opentelemetry-operations-go/internal/resourcemapping v0.51.0
	github.com/Masterminds/semver/v3 v3.4.0
	github.com/andybalholm/brotli v1.2.0
	github.com/antlr4-go/antlr/v4 v4.13.1
	github.com/aws/aws-sdk-go v1.55.6
	github.com/aws/aws-sdk-go-v2 v1.41.7
	github.com/aws/aws-sdk-go-v2/config v1.31.12
	github.com/aws/aws-sdk-go-v2/credentials v1.18.16
	github.com/aws/aws-sdk-go-v2/service/ec2 v1.279.0
	github.com/aws/aws-sdk-go-v2/service/ecs v1.71.0
	github.com/aws/aws-sdk-go-v2/service/kafka v1.51.0
	github.com/aws/aws-sdk-go-v2/service/lightsail v1.50.10
	github.com/aws/smithy-go v1.25.1
	github.com/beorn7/perks v1.0.1
	github.com/blang/semver/v4 v4.0.0
	github.com/blendle/zapdriver v1.3.1
	github.com/cenkalti/backoff/v5 v5.0.3
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/cloudevents/sdk-go/v2 v2.16.2
	github.com/cncf/xds/go v0.0.0-20251210132809-ee656c7534f5
	github.com/containerd/errdefs v1.0.0
	github.com/containerd/errdefs/pkg v0.3.0
	github.com/coreos/go-semver v0.3.1
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc
	github.com/digitalocean/godo v1.165.1
	github.com/docker/docker v28.4.0+incompatible
	github.com/emicklei/go-restful/v3 v3.13.0
	github.com/envoyproxy/go-control-plane/envoy v1.37.0
	github.com/envoyproxy/protoc-gen-validate v1.3.0
	github.com/evanphx/json-patch/v5 v5.9.11
	github.com/expr-lang/expr v1.17.6
	github.com/felixge/httpsnoop v1.0.4
	github.com/fsnotify/fsnotify v1.9.0
	github.com/fxamacker/cbor/v2 v2.9.0
	github.com/getkin/kin-openapi v0.131.0
	github.com/go-jose/go-jose/v4 v4.1.3
	github.com/go-logr/logr v1.4.3
	github.com/go-logr/stdr v1.2.2
	github.com/go-logr/zapr v1.3.0
	github.com/go-openapi/jsonpointer v0.22.4
	github.com/go-openapi/jsonreference v0.21.4
	github.com/go-openapi/swag v0.25.4
	github.com/go-openapi/swag/cmdutils v0.25.4
	github.com/go-openapi/swag/conv v0.25.4
	github.com/go-openapi/swag/fileutils v0.25.4
	github.com/go-openapi/swag/jsonname v0.25.4
	github.com/go-openapi/swag/jsonutils v0.25.4
	github.com/go-openapi/swag/loading v0.25.4
	github.com/go-openapi/swag/mangling v0.25.4
	github.com/go-openapi/swag/netutils v0.25.4
	github.com/go-openapi/swag/stringutils v0.25.4
	github.com/go-openapi/swag/typeutils v0.25.4
	github.com/go-openapi/swag/yamlutils v0.25.4
	github.com/go-playground/locales v0.14.1
	github.com/go-playground/universal-translator v0.18.1
	github.com/go-task/slim-sprig/v3 v3.0.0
	github.com/go-zookeeper/zk v1.0.4
	github.com/gofrs/uuid/v5 v5.3.0
	github.com/gogo/protobuf v1.3.2
	github.com/golang-jwt/jwt/v5 v5.3.0
	github.com/golang/protobuf v1.5.4
	github.com/google/btree v1.1.3
	github.com/google/cel-go v0.26.0
	github.com/google/gnostic-models v0.7.0
	github.com/google/go-cmp v0.7.0
	github.com/google/go-containerregistry v0.20.3
	github.com/google/pprof v0.0.0-20260202012954-cb029daf43ef
	github.com/google/s2a-go v0.1.9
	github.com/google/uuid v1.6.0
	github.com/googleapis/enterprise-certificate-proxy v0.3.6
	github.com/googleapis/gax-go/v2 v2.15.0
	github.com/googleapis/google-cloud-go-testing v0.0.0-20210719221736-1c9a4c676720
	github.com/gophercloud/gophercloud/v2 v2.8.0
	github.com/gorilla/websocket v1.5.4-0.20250319132907-e064f32e3674
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.28.0
	github.com/hashicorp/consul/api v1.32.0
	github.com/hashicorp/go-version v1.7.0
	github.com/hashicorp/nomad/api v0.0.0-20250930071859-eaa0fe0e27af
	github.com/hetznercloud/hcloud-go/v2 v2.25.1
	github.com/inconshreveable/mousetrap v1.1.0
	github.com/ionos-cloud/sdk-go/v6 v6.3.4
	github.com/jmespath/go-jmespath v0.4.1-0.20220621161143-b0104c826a24
	github.com/josharian/intern v1.0.0
	github.com/json-iterator/go v1.1.12
	github.com/kedacore/keda/v2 v2.18.0
	github.com/kelseyhightower/envconfig v1.4.0
	github.com/klauspost/compress v1.18.2
	github.com/kserve/kserve v0.20.0
	github.com/kylelemons/godebug v1.1.0
	github.com/leodido/go-urn v1.4.0
	github.com/linode/linodego v1.59.0
	github.com/llm-d/llm-d-workload-variant-autoscaler v0.7.0
	github.com/mailru/easyjson v0.9.1
	github.com/mitchellh/mapstructure v1.5.0
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd
	github.com/modern-go/reflect2 v1.0.3-0.20250322232337-35a7c28c31ee
	github.com/mohae/deepcopy v0.0.0-20170929034955-c48cc78d4826
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822
	github.com/oasdiff/yaml v0.0.0-20250309154309-f31be36b4037
	github.com/oasdiff/yaml3 v0.0.0-20250309153720-d2182401db90
	github.com/onsi/ginkgo/v2 v2.28.1
	github.com/onsi/gomega v1.39.1
	github.com/open-telemetry/opentelemetry-operator v0.113.0
	github.com/opencontainers/go-digest v1.0.0
	github.com/ovh/go-ovh v1.9.0
	github.com/parquet-go/bitpack v1.0.0
	github.com/parquet-go/jsonlite v1.0.0
	github.com/parquet-go/parquet-go v0.27.0
	github.com/perimeterx/marshmallow v1.1.5
	github.com/pierrec/lz4/v4 v4.1.22
	github.com/pkg/browser v0.0.0-20240102092130-5ac0b6a4141c
	github.com/pkg/errors v0.9.1
	github.com/planetscale/vtprotobuf v0.6.1-0.20240319094008-0393e58bdf10
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2
	github.com/prometheus/client_golang v1.23.2
	github.com/prometheus/client_golang/exp v0.0.0-20260108101519-fb0838f53562
	github.com/prometheus/client_model v0.6.2
	github.com/prometheus/common v0.67.5
	github.com/prometheus/otlptranslator v1.0.0
	github.com/prometheus/procfs v0.19.2
	github.com/prometheus/sigv4 v0.2.1
	github.com/scaleway/scaleway-sdk-go v1.0.0-beta.35
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	github.com/spiffe/go-spiffe/v2 v2.6.0
	github.com/stackitcloud/stackit-sdk-go/core v0.17.3
	github.com/stoewer/go-strcase v1.3.1
	github.com/stretchr/objx v0.5.2
	github.com/stretchr/testify v1.11.1
	github.com/tidwall/gjson v1.18.0
	github.com/tidwall/match v1.1.1
	github.com/tidwall/pretty v1.2.1
	github.com/twpayne/go-geom v1.6.1
	github.com/x448/float16 v0.8.4
	go.opentelemetry.io/auto/sdk v1.2.1
	go.opentelemetry.io/collector/featuregate v1.42.0
	go.opentelemetry.io/contrib/detectors/gcp v1.39.0
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.61.0
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.65.0
	go.opentelemetry.io/otel v1.43.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.43.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc v1.43.0
	go.opentelemetry.io/otel/exporters/prometheus v0.61.0
	go.opentelemetry.io/otel/metric v1.43.0
	go.opentelemetry.io/otel/sdk v1.43.0
	go.opentelemetry.io/otel/sdk/metric v1.43.0
	go.opentelemetry.io/otel/trace v1.43.0
	go.opentelemetry.io/proto/otlp v1.10.0
	go.uber.org/multierr v1.11.0
	go.uber.org/zap v1.27.1
	go.yaml.in/yaml/v2 v2.4.3
	go.yaml.in/yaml/v3 v3.0.4
	golang.org/x/crypto v0.49.0
	golang.org/x/exp v0.0.0-20260112195511-716be5621a96
	golang.org/x/mod v0.33.0
	golang.org/x/net v0.52.0
	golang.org/x/oauth2 v0.35.0
	golang.org/x/sync v0.20.0
	golang.org/x/sys v0.42.0
	golang.org/x/term v0.41.0
	golang.org/x/text v0.35.0
	golang.org/x/time v0.15.0
	golang.org/x/tools v0.42.0
	gomodules.xyz/jsonpatch/v2 v2.5.0
	google.golang.org/api v0.250.0
	google.golang.org/genproto v0.0.0-20250603155806-513f23925822
	google.golang.org/genproto/googleapis/api v0.0.0-20260401024825-9d38bb4040a9
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260401024825-9d38bb4040a9
	google.golang.org/grpc v1.80.0
	google.golang.org/protobuf v1.36.11
	gopkg.in/evanphx/json-patch.v4 v4.13.0
	gopkg.in/go-playground/assert.v1 v1.2.1
	gopkg.in/go-playground/validator.v9 v9.31.0
	gopkg.in/inf.v0 v0.9.1
	gopkg.in/yaml.v2 v2.4.0
	gopkg.in/yaml.v3 v3.0.1
	istio.io/api v1.27.1
	istio.io/client-go v1.27.1
	k8s.io/api v0.35.3
	k8s.io/apiextensions-apiserver v0.35.3
	k8s.io/apimachinery v0.35.3
	k8s.io/apiserver v0.35.3
	k8s.io/client-go v0.35.3
	k8s.io/code-generator v0.35.3
	k8s.io/component-base v0.35.3
	k8s.io/component-helpers v0.35.3
	k8s.io/gengo/v2 v2.0.0-20250922181213-ec3ebc5fd46b
	k8s.io/klog/v2 v2.130.1
	k8s.io/kube-openapi v0.0.0-20260127142750-a19766b6e2d4
	k8s.io/utils v0.0.0-20260108192941-914a6e750570
	knative.dev/networking v0.0.0-20260120131110-a7cdca238a0d
	knative.dev/pkg v0.0.0-20260120122510-4a022ed9999a
	knative.dev/serving v0.48.1
	sigs.k8s.io/apiserver-network-proxy/konnectivity-client v0.31.2
	sigs.k8s.io/controller-runtime v0.23.3
	sigs.k8s.io/gateway-api v1.5.1
	sigs.k8s.io/gateway-api-inference-extension v1.5.0
	sigs.k8s.io/json v0.0.0-20250730193827-2d320260d730
	sigs.k8s.io/lws v0.8.0
	sigs.k8s.io/randfill v1.0.0
	sigs.k8s.io/structured-merge-diff/v6 v6.3.2
	sigs.k8s.io/yaml v1.6.0
)

replace sigs.k8s.io/controller-runtime => sigs.k8s.io/controller-runtime v0.22.5

replace k8s.io/api => k8s.io/api v0.34.5

replace k8s.io/apiextensions-apiserver => k8s.io/apiextensions-apiserver v0.34.3

replace k8s.io/apimachinery => k8s.io/apimachinery v0.34.5

replace k8s.io/apiserver => k8s.io/apiserver v0.34.3

replace k8s.io/client-go => k8s.io/client-go v0.34.5

replace k8s.io/code-generator => k8s.io/code-generator v0.34.3

replace k8s.io/component-base => k8s.io/component-base v0.34.3

replace k8s.io/component-helpers => k8s.io/component-helpers v0.34.3

replace github.com/expr-lang/expr => github.com/expr-lang/expr v1.17.7

replace google.golang.org/grpc => google.golang.org/grpc v1.79.3

replace github.com/lyft/protoc-gen-validate => github.com/envoyproxy/protoc-gen-validate v1.0.4

tool github.com/kserve/kserve/cmd/manager

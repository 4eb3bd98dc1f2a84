module triton-gateway/tests/cluster/programs/keda

go 1.26.0

require (
	cel.dev/expr v0.25.1
	cloud.google.com/go v0.123.0
	cloud.google.com/go/auth v0.20.0
	cloud.google.com/go/auth/oauth2adapt v0.2.8
	cloud.google.com/go/compute/metadata v0.9.0
	cloud.google.com/go/iam v1.7.0
	cloud.google.com/go/monitoring v1.29.0
	cloud.google.com/go/secretmanager v1.20.0
	cloud.google.com/go/storage v1.62.2
	code.cloudfoundry.org/clock v1.59.0
	dario.cat/mergo v1.0.2
	filippo.io/edwards25519 v1.2.0
	github.com/Azure/azure-amqp-common-go/v4 v4.2.0
	github.com/Azure/azure-kusto-go/azkustodata v1.2.2
	github.com/Azure/azure-sdk-for-go/sdk/azcore v1.21.1
	github.com/Azure/azure-sdk-for-go/sdk/azidentity v1.13.1
	github.com/Azure/azure-sdk-for-go/sdk/internal v1.12.0
	github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2 v2.0.2
	github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus v1.10.0
	github.com/Azure/azure-sdk-for-go/sdk/messaging/eventgrid/azeventgrid v1.0.0
	github.com/Azure/azure-sdk-for-go/sdk/monitor/azquery v1.2.0
	github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/eventhub/armeventhub v1.3.0
	github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets v1.4.0
	github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/internal v1.2.0
	github.com/Azure/azure-sdk-for-go/sdk/storage/azblob v1.7.0
	github.com/Azure/azure-sdk-for-go/sdk/storage/azqueue v1.0.1
	github.com/Azure/go-amqp v1.5.1
	github.com/AzureAD/microsoft-authentication-library-for-go v1.7.2
	github.com/DataDog/datadog-api-client-go v1.16.0
	github.com/DataDog/zstd v1.5.7
	github.com/GoogleCloudPlatform/opentelemetry-operations-go/detectors/gcp v1.31.0
	github.com/GoogleCloudPlatform/opentelemetry-operations-go/exporter/metric v0.55.0
	github.com/GoogleCloudPlatform/opentelemetry-operations-go/internal/resourcemapping v0.55.0
	github.com/Huawei/gophercloud v1.0.21
	github.com/IBM/sarama v1.49.0
	github.com/InfluxCommunity/influxdb3-go/v2 v2.15.0
	github.com/Masterminds/semver/v3 v3.4.0
	github.com/NYTimes/gziphandler v1.1.1
	github.com/ProtonMail/go-crypto v1.3.0
	github.com/andybalholm/brotli v1.2.1
	github.com/antlr4-go/antlr/v4 v4.13.1
	github.com/apache/arrow-go/v18 v18.6.0
	github.com/apapsch/go-jsonmerge/v2 v2.0.0
	github.com/arangodb/go-driver v1.6.9
	github.com/arangodb/go-velocypack v0.0.0-20200318135517-5af53c29c67e
	github.com/aws/aws-msk-iam-sasl-signer-go v1.0.4
	github.com/aws/aws-sdk-go-v2 v1.41.7
	github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream v1.7.10
	github.com/aws/aws-sdk-go-v2/config v1.32.18
	github.com/aws/aws-sdk-go-v2/credentials v1.19.17
	github.com/aws/aws-sdk-go-v2/feature/ec2/imds v1.18.23
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.4.23
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.7.23
	github.com/aws/aws-sdk-go-v2/internal/v4a v1.4.24
	github.com/aws/aws-sdk-go-v2/service/amp v1.42.11
	github.com/aws/aws-sdk-go-v2/service/cloudwatch v1.57.0
	github.com/aws/aws-sdk-go-v2/service/dynamodb v1.57.4
	github.com/aws/aws-sdk-go-v2/service/dynamodbstreams v1.32.16
	github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding v1.13.9
	github.com/aws/aws-sdk-go-v2/service/internal/endpoint-discovery v1.12.0
	github.com/aws/aws-sdk-go-v2/service/internal/presigned-url v1.13.23
	github.com/aws/aws-sdk-go-v2/service/kinesis v1.43.7
	github.com/aws/aws-sdk-go-v2/service/secretsmanager v1.41.7
	github.com/aws/aws-sdk-go-v2/service/signin v1.0.11
	github.com/aws/aws-sdk-go-v2/service/sqs v1.42.27
	github.com/aws/aws-sdk-go-v2/service/sso v1.30.17
	github.com/aws/aws-sdk-go-v2/service/ssooidc v1.36.0
	github.com/aws/aws-sdk-go-v2/service/sts v1.42.1
	github.com/aws/smithy-go v1.25.1
	github.com/beanstalkd/go-beanstalk v0.2.0
	github.com/beorn7/perks v1.0.1
	github.com/bitfield/gotestdox v0.2.2
	github.com/blang/semver/v4 v4.0.0
	github.com/bradleyfalzon/ghinstallation/v2 v2.18.0
	github.com/cenkalti/backoff/v4 v4.3.0
	github.com/cenkalti/backoff/v5 v5.0.3
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/clipperhouse/uax29/v2 v2.7.0
	github.com/cloudevents/sdk-go/v2 v2.16.2
	github.com/cloudflare/circl v1.6.3
	github.com/cncf/xds/go v0.0.0-20260202195803-dba9d589def2
	github.com/coreos/go-semver v0.3.1
	github.com/coreos/go-systemd/v22 v22.7.0
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc
	github.com/dennwc/varint v1.0.0
	github.com/dnephin/pflag v1.0.7
	github.com/dysnix/predictkube-libs v0.1.0
	github.com/dysnix/predictkube-proto v0.0.0-20250415003810-aa0af0a0019b
	github.com/eapache/go-resiliency v1.7.0
	github.com/eapache/queue v1.1.0
	github.com/elastic/go-elasticsearch/v7 v7.17.10
	github.com/emicklei/go-restful/v3 v3.13.0
	github.com/envoyproxy/go-control-plane/envoy v1.37.0
	github.com/envoyproxy/protoc-gen-validate v1.3.3
	github.com/evanphx/json-patch v5.9.0+incompatible
	github.com/evanphx/json-patch/v5 v5.9.11
	github.com/expr-lang/expr v1.17.8
	github.com/facebookgo/clock v0.0.0-20150410010913-600d898af40a
	github.com/fatih/color v1.19.0
	github.com/felixge/httpsnoop v1.0.4
	github.com/frankban/quicktest v1.14.6
	github.com/fsnotify/fsnotify v1.10.0
	github.com/fxamacker/cbor/v2 v2.9.1
	github.com/gabriel-vasile/mimetype v1.4.13
	github.com/go-errors/errors v1.5.1
	github.com/go-jose/go-jose/v4 v4.1.4
	github.com/go-kivik/couchdb/v3 v3.4.1
	github.com/go-kivik/kivik/v3 v3.2.4
	github.com/go-logr/logr v1.4.3
	github.com/go-logr/stdr v1.2.2
	github.com/go-logr/zapr v1.3.0
	github.com/go-openapi/jsonpointer v0.23.1
	github.com/go-openapi/jsonreference v0.21.5
	github.com/go-openapi/swag v0.26.0
	github.com/go-openapi/swag/cmdutils v0.26.0
	github.com/go-openapi/swag/conv v0.26.0
	github.com/go-openapi/swag/fileutils v0.26.0
	github.com/go-openapi/swag/jsonname v0.26.0
	github.com/go-openapi/swag/jsonutils v0.26.0
	github.com/go-openapi/swag/loading v0.26.0
	github.com/go-openapi/swag/mangling v0.26.0
	github.com/go-openapi/swag/netutils v0.26.0
	github.com/go-openapi/swag/stringutils v0.26.0
	github.com/go-openapi/swag/typeutils v0.26.0
	github.com/go-openapi/swag/yamlutils v0.26.0
	github.com/go-playground/locales v0.14.1
	github.com/go-playground/universal-translator v0.18.1
	github.com/go-playground/validator/v10 v10.30.2
	github.com/go-sql-driver/mysql v1.10.0
	github.com/go-task/slim-sprig/v3 v3.0.0
	github.com/gobuffalo/flect v1.0.3
	github.com/gobwas/glob v0.2.3
	github.com/goccy/go-json v0.10.6
	github.com/gocql/gocql v1.7.0
	github.com/gofrs/uuid v4.4.0+incompatible
	github.com/gogo/protobuf v1.3.2
	github.com/golang-jwt/jwt/v4 v4.5.2
	github.com/golang-jwt/jwt/v5 v5.3.1
	github.com/golang-sql/civil v0.0.0-20220223132316-b832511892a9
	github.com/golang-sql/sqlexp v0.1.0
	github.com/golang/mock v1.6.0
	github.com/golang/protobuf v1.5.4
	github.com/golang/snappy v1.0.0
	github.com/google/btree v1.1.3
	github.com/google/cel-go v0.27.0
	github.com/google/flatbuffers v25.12.19+incompatible
	github.com/google/gnostic-models v0.7.1
	github.com/google/go-cmp v0.7.0
	github.com/google/go-github/v50 v50.2.0
	github.com/google/go-github/v84 v84.0.0
	github.com/google/go-querystring v1.2.0
	github.com/google/pprof v0.0.0-20260402051712-545e8a4df936
	github.com/google/s2a-go v0.1.9
	github.com/google/shlex v0.0.0-20191202100458-e7afc7fbc510
	github.com/google/uuid v1.6.0
	github.com/googleapis/enterprise-certificate-proxy v0.3.16
	github.com/googleapis/gax-go/v2 v2.22.0
	github.com/gophercloud/gophercloud v1.14.1
	github.com/gorilla/websocket v1.5.4-0.20250319132907-e064f32e3674
	github.com/grafana/regexp v0.0.0-20250905093917-f7b3be9d1853
	github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus v1.1.0
	github.com/grpc-ecosystem/go-grpc-middleware/v2 v2.3.3
	github.com/grpc-ecosystem/go-grpc-prometheus v1.2.0
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.28.0
	github.com/hailocab/go-hostpool v0.0.0-20160125115350-e80d13ce29ed
	github.com/hashicorp/errwrap v1.1.0
	github.com/hashicorp/go-cleanhttp v0.5.2
	github.com/hashicorp/go-multierror v1.1.1
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/hashicorp/go-rootcerts v1.0.2
	github.com/hashicorp/go-secure-stdlib/parseutil v0.2.0
	github.com/hashicorp/go-secure-stdlib/strutil v0.1.2
	github.com/hashicorp/go-sockaddr v1.0.7
	github.com/hashicorp/go-uuid v1.0.3
	github.com/hashicorp/hcl v1.0.1-vault-7
	github.com/hashicorp/vault/api v1.23.0
	github.com/imdario/mergo v0.3.16
	github.com/inconshreveable/mousetrap v1.1.0
	github.com/influxdata/influxdb-client-go/v2 v2.14.0
	github.com/influxdata/line-protocol v0.0.0-20210922203350-b1ad95c89adf
	github.com/influxdata/line-protocol/v2 v2.2.1
	github.com/jackc/pgpassfile v1.0.0
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761
	github.com/jackc/pgx/v5 v5.9.2
	github.com/jackc/puddle/v2 v2.2.2
	github.com/jcmturner/aescts/v2 v2.0.0
	github.com/jcmturner/dnsutils/v2 v2.0.0
	github.com/jcmturner/gofork v1.7.6
	github.com/jcmturner/gokrb5/v8 v8.4.4
	github.com/jcmturner/rpc/v2 v2.0.3
	github.com/joho/godotenv v1.5.1
	github.com/jpillora/backoff v1.0.0
	github.com/json-iterator/go v1.1.12
	github.com/jstemmer/go-junit-report/v2 v2.1.0
	github.com/kedacore/keda/v2 v2.20.2
	github.com/klauspost/compress v1.18.6
	github.com/klauspost/cpuid/v2 v2.3.0
	github.com/kylelemons/godebug v1.1.0
	github.com/leodido/go-urn v1.4.0
	github.com/mattn/go-colorable v0.1.14
	github.com/mattn/go-isatty v0.0.20
	github.com/mattn/go-runewidth v0.0.20
	github.com/microsoft/ApplicationInsights-Go v0.4.4
	github.com/microsoft/azure-devops-go-api/azuredevops v1.0.0-b5
	github.com/microsoft/go-mssqldb v1.9.6
	github.com/mitchellh/go-homedir v1.1.0
	github.com/mitchellh/hashstructure v1.1.0
	github.com/mitchellh/mapstructure v1.5.0
	github.com/moby/spdystream v0.5.1
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd
	github.com/modern-go/reflect2 v1.0.3-0.20250322232337-35a7c28c31ee
	github.com/monochromegane/go-gitignore v0.0.0-20200626010858-205db1a8cc00
	github.com/montanaflynn/stats v0.7.1
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822
	github.com/mwitkow/go-conntrack v0.0.0-20190716064945-2f068394615f
	github.com/mxk/go-flowrate v0.0.0-20140419014527-cca7078d478f
	github.com/newrelic/newrelic-client-go/v2 v2.86.1
	github.com/nexus-rpc/sdk-go v0.6.0
	github.com/oapi-codegen/runtime v1.1.2
	github.com/olekukonko/tablewriter v0.0.5
	github.com/onsi/ginkgo/v2 v2.29.0
	github.com/onsi/gomega v1.41.0
	github.com/open-policy-agent/cert-controller v0.16.0
	github.com/opensearch-project/opensearch-go/v4 v4.6.0
	github.com/phayes/freeport v0.0.0-20220201140144-74d24b5ae9f5
	github.com/pierrec/lz4/v4 v4.1.26
	github.com/pkg/browser v0.0.0-20240102092130-5ac0b6a4141c
	github.com/pkg/errors v0.9.1
	github.com/planetscale/vtprotobuf v0.6.1-0.20240319094008-0393e58bdf10
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2
	github.com/prometheus/client_golang v1.23.2
	github.com/prometheus/client_model v0.6.2
	github.com/prometheus/common v0.67.5
	github.com/prometheus/procfs v0.20.1
	github.com/prometheus/prometheus v0.310.0
	github.com/rabbitmq/amqp091-go v1.11.0
	github.com/rcrowley/go-metrics v0.0.0-20250401214520-65e299d6c5c9
	github.com/redis/go-redis/v9 v9.19.0
	github.com/robertkrimen/otto v0.5.1
	github.com/robfig/cron v1.2.0
	github.com/robfig/cron/v3 v3.0.1
	github.com/ryanuber/go-glob v1.0.0
	github.com/samber/lo v1.52.0
	github.com/segmentio/kafka-go v0.4.51
	github.com/segmentio/kafka-go/sasl/aws_msk_iam_v2 v0.1.0
	github.com/sergi/go-diff v1.4.0
	github.com/shopspring/decimal v1.4.0
	github.com/signalfx/signalflow-client-go/v2 v2.3.0
	github.com/signalfx/signalfx-go v1.54.0
	github.com/sirupsen/logrus v1.9.4
	github.com/solarwinds/swo-sdk-go/swov1 v0.15.1
	github.com/spf13/afero v1.15.0
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	github.com/spiffe/go-spiffe/v2 v2.6.0
	github.com/spyzhov/ajson v0.9.6
	github.com/stoewer/go-strcase v1.3.1
	github.com/stretchr/objx v0.5.3
	github.com/stretchr/testify v1.11.1
	github.com/tidwall/gjson v1.19.0
	github.com/tidwall/match v1.2.0
	github.com/tidwall/pretty v1.2.1
	github.com/tomnomnom/linkheader v0.0.0-20250811210735-e5fe3b51442e
	github.com/ulikunitz/unixtime v0.1.2
	github.com/valyala/bytebufferpool v1.0.0
	github.com/valyala/fasthttp v1.69.0
	github.com/valyala/fastjson v1.6.7
	github.com/wagslane/go-password-validator v0.3.0
	github.com/x448/float16 v0.8.4
	github.com/xdg-go/pbkdf2 v1.0.0
	github.com/xdg-go/scram v1.2.0
	github.com/xdg-go/stringprep v1.0.4
	github.com/xhit/go-str2duration/v2 v2.1.0
	github.com/xlab/treeprint v1.2.0
	github.com/youmark/pkcs8 v0.0.0-20240726163527-a2c0da244d78
	github.com/zeebo/xxh3 v1.1.0
	go.etcd.io/etcd/api/v3 v3.6.11
	go.etcd.io/etcd/client/pkg/v3 v3.6.11
	go.etcd.io/etcd/client/v3 v3.6.11
	go.mongodb.org/mongo-driver v1.17.9
	go.opentelemetry.io/auto/sdk v1.2.1
	go.opentelemetry.io/contrib/detectors/gcp v1.42.0
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.67.0
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.67.0
	go.opentelemetry.io/otel v1.43.0
	go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc v1.43.0
	go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp v1.43.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.43.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc v1.43.0
	go.opentelemetry.io/otel/metric v1.43.0
	go.opentelemetry.io/otel/sdk v1.43.0
	go.opentelemetry.io/otel/sdk/metric v1.43.0
	go.opentelemetry.io/otel/trace v1.43.0
	go.opentelemetry.io/proto/otlp v1.10.0
	go.temporal.io/api v1.62.12
	go.temporal.io/sdk v1.44.0
	go.uber.org/atomic v1.11.0
	go.uber.org/mock v0.6.0
	go.uber.org/multierr v1.11.0
	go.uber.org/zap v1.28.0
	go.yaml.in/yaml/v2 v2.4.4
	go.yaml.in/yaml/v3 v3.0.4
	golang.org/x/crypto v0.52.0
	golang.org/x/exp v0.0.0-20260508232706-74f9aab9d74a
	golang.org/x/mod v0.36.0
	golang.org/x/net v0.55.0
	golang.org/x/oauth2 v0.36.0
	golang.org/x/sync v0.20.0
	golang.org/x/sys v0.45.0
	golang.org/x/term v0.43.0
	golang.org/x/text v0.37.0
	golang.org/x/time v0.15.0
	golang.org/x/tools v0.45.0
	golang.org/x/xerrors v0.0.0-20240903120638-7835f813f4da
	gomodules.xyz/jsonpatch/v2 v2.5.0
	google.golang.org/api v0.281.0
	google.golang.org/genproto v0.0.0-20260319201613-d00831a3d3e7
	google.golang.org/genproto/googleapis/api v0.0.0-20260401024825-9d38bb4040a9
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260523011958-0a33c5d7ca68
	google.golang.org/grpc v1.81.1
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.2
	google.golang.org/protobuf v1.36.12-0.20260120151049-f2248ac996af
	gopkg.in/evanphx/json-patch.v4 v4.13.0
	gopkg.in/inf.v0 v0.9.1
	gopkg.in/natefinch/lumberjack.v2 v2.2.1
	gopkg.in/sourcemap.v1 v1.0.5
	gopkg.in/yaml.v2 v2.4.0
	gopkg.in/yaml.v3 v3.0.1
	gotest.tools/gotestsum v1.13.0
	k8s.io/api v0.36.0
	k8s.io/apiextensions-apiserver v0.36.0
	k8s.io/apimachinery v0.36.0
	k8s.io/apiserver v0.36.0
	k8s.io/client-go v0.36.0
	k8s.io/code-generator v0.36.0
	k8s.io/component-base v0.36.0
	k8s.io/gengo/v2 v2.0.0-20250922181213-ec3ebc5fd46b
	k8s.io/klog/v2 v2.140.0
	k8s.io/kms v0.35.5
	k8s.io/kube-openapi v0.0.0-20260427204847-8949caaa1199
	k8s.io/metrics v0.35.0
	k8s.io/utils v0.0.0-20260319190234-28399d86e0b5
	sigs.k8s.io/apiserver-network-proxy/konnectivity-client v0.34.0
	sigs.k8s.io/controller-runtime v0.23.3
	sigs.k8s.io/controller-runtime/tools/setup-envtest v0.24.1
	sigs.k8s.io/controller-tools v0.21.0
	sigs.k8s.io/custom-metrics-apiserver v1.35.0
	sigs.k8s.io/json v0.0.0-20250730193827-2d320260d730
	sigs.k8s.io/kustomize/api v0.21.1
	sigs.k8s.io/kustomize/cmd/config v0.21.1
	sigs.k8s.io/kustomize/kustomize/v5 v5.8.1
	sigs.k8s.io/kustomize/kyaml v0.21.1
	sigs.k8s.io/randfill v1.0.0
	sigs.k8s.io/structured-merge-diff/v6 v6.4.0
	sigs.k8s.io/yaml v1.6.0
)

replace github.com/google/cel-go => github.com/google/cel-go v0.26.0

replace github.com/prometheus/client_golang => github.com/prometheus/client_golang v1.23.2

replace github.com/prometheus/client_model => github.com/prometheus/client_model v0.6.2

replace github.com/prometheus/common => github.com/prometheus/common v0.66.1

replace github.com/prometheus/prometheus => github.com/prometheus/prometheus v0.304.2

replace k8s.io/api => k8s.io/api v0.35.5

replace k8s.io/apiextensions-apiserver => k8s.io/apiextensions-apiserver v0.35.5

replace k8s.io/apimachinery => k8s.io/apimachinery v0.35.5

replace k8s.io/apiserver => k8s.io/apiserver v0.35.5

replace k8s.io/client-go => k8s.io/client-go v0.35.5

replace k8s.io/code-generator => k8s.io/code-generator v0.35.5

replace k8s.io/component-base => k8s.io/component-base v0.35.5

replace k8s.io/gengo/v2 => k8s.io/gengo/v2 v2.0.0-20250922181213-ec3ebc5fd46b

replace k8s.io/kube-openapi => k8s.io/kube-openapi v0.0.0-20250910181357-589584f1c912

replace k8s.io/metrics => k8s.io/metrics v0.35.5

replace sigs.k8s.io/controller-runtime => sigs.k8s.io/controller-runtime v0.23.3

tool (
	github.com/kedacore/keda/v2/cmd/adapter
	github.com/kedacore/keda/v2/cmd/operator
)

module triton-gateway/tests/cluster/programs/toxiproxy

go 1.17

require (
	github.com/Shopify/toxiproxy/v2 v2.5.0
	github.com/beorn7/perks v1.0.1
	github.com/cespare/xxhash/v2 v2.1.2
	github.com/cpuguy83/go-md2man/v2 v2.0.2
	github.com/golang/protobuf v1.5.2
	github.com/gorilla/mux v1.8.0
	github.com/mattn/go-colorable v0.1.13
	github.com/mattn/go-isatty v0.0.16
	github.com/matttproud/golang_protobuf_extensions v1.0.1
	github.com/prometheus/client_golang v1.13.0
	github.com/prometheus/client_model v0.2.0
	github.com/prometheus/common v0.37.0
	github.com/prometheus/procfs v0.8.0
	github.com/rs/xid v1.4.0
	github.com/rs/zerolog v1.28.0
	github.com/russross/blackfriday/v2 v2.1.0
	github.com/urfave/cli/v2 v2.11.0
	github.com/xrash/smetrics v0.0.0-20201216005158-039620a65673
	golang.org/x/sys v0.0.0-20220909162455-aba9fc2a8ff2
	golang.org/x/term v0.0.0-20220526004731-065cf7ba2467
	google.golang.org/protobuf v1.28.1
	gopkg.in/tomb.v1 v1.0.0-20141024135613-dd632973f1e7
)

tool github.com/Shopify/toxiproxy/v2/cmd/server

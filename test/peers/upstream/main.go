// Command upstream is what `proa bench` is compared with: Kubernetes' own generic
// API server library, serving pods from etcd. It is a module of its own, so that
// nothing of it gets into Proa.
//
// It does less for a pod than a real kube-apiserver: no defaulting, no
// validation, no admission, no authorization and no controllers beside it. What
// it costs is a lower bound.
package main

//go:generate go tool openapi-gen --output-dir openapi --output-pkg proa/test/peers/upstream/openapi --output-file zz_generated.openapi.go --go-header-file /dev/null --report-filename /dev/null k8s.io/api/core/v1 k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/util/intstr

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/component-base/compatibility"

	"proa/test/peers/upstream/openapi"
)

var (
	scheme = newScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

// newScheme has the types of core/v1 for the internal version too: there is
// nothing to convert.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	must(corev1.AddToScheme(s))
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	s.AddKnownTypes(schema.GroupVersion{Version: runtime.APIVersionInternal}, &corev1.Pod{}, &corev1.PodList{})
	must(metainternalversion.AddToScheme(s))
	must(s.SetVersionPriority(corev1.SchemeGroupVersion))
	return s
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func main() {
	port := flag.Int("port", 6443, "port to serve on, at 127.0.0.1")
	etcd := flag.String("etcd", "http://127.0.0.1:2379", "client URL of etcd")
	dir := flag.String("dir", ".", "where the certificate and the kubeconfig go")
	flag.Parse()
	config, err := newConfig(*port, *etcd, *dir)
	must(err)
	client, err := kubernetes.NewForConfig(config.LoopbackClientConfig)
	must(err)
	server, err := config.Complete(informers.NewSharedInformerFactory(client, 0)).New("upstream", genericapiserver.NewEmptyDelegate())
	must(err)
	must(install(server, config.RESTOptionsGetter))
	must(writeKubeconfig(config, filepath.Join(*dir, "kubeconfig")))
	must(server.PrepareRun().RunWithContext(genericapiserver.SetupSignalContext()))
}

// newConfig is the library's defaults: watch cache, protobuf in etcd, TLS.
func newConfig(port int, etcd, dir string) (*genericapiserver.Config, error) {
	c := genericapiserver.NewConfig(codecs)
	c.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.37", "", "")
	namer := apiopenapi.NewDefinitionNamer(scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	serving := options.NewSecureServingOptions()
	serving.BindAddress, serving.BindPort = net.IPv4(127, 0, 0, 1), port
	serving.ServerCert.CertDirectory = dir
	if err := serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, err
	}
	if err := serving.WithLoopback().ApplyTo(&c.SecureServing, &c.LoopbackClientConfig); err != nil {
		return nil, err
	}
	c.PublicAddress = serving.BindAddress
	c.Authentication.Authenticator = anonymous.NewAuthenticator(nil)
	c.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	storage := options.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", storageCodec()))
	storage.StorageConfig.Transport.ServerList = []string{etcd}
	return c, storage.ApplyTo(c)
}

func storageCodec() runtime.Codec {
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		panic("the library has no protobuf")
	}
	return codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
}

// writeKubeconfig lets clients in by the token that the server talks to itself with.
func writeKubeconfig(c *genericapiserver.Config, path string) error {
	loopback := c.LoopbackClientConfig
	config := clientcmdapi.NewConfig()
	config.Clusters["upstream"] = &clientcmdapi.Cluster{
		Server: loopback.Host, CertificateAuthorityData: loopback.CAData, TLSServerName: loopback.TLSClientConfig.ServerName,
	}
	config.AuthInfos["upstream"] = &clientcmdapi.AuthInfo{Token: loopback.BearerToken}
	config.Contexts["upstream"] = &clientcmdapi.Context{Cluster: "upstream", AuthInfo: "upstream"}
	config.CurrentContext = "upstream"
	return clientcmd.WriteToFile(*config, path)
}

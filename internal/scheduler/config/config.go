// Package config reads KubeSchedulerConfiguration, the file that kube-scheduler
// takes with --config: profiles with their plugins and arguments, extenders, and
// how long failed pods back off. Defaults, checks and messages are upstream's.
//
// What concerns a process of its own (clientConnection, leaderElection, debugging)
// is checked and has no effect.
package config

import (
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"proa/internal/scheduler/profile"
)

// Settings are what such a file decides. The zero value means the defaults.
type Settings struct {
	// Profiles by scheduler name. None: "default-scheduler" with the default plugins.
	Profiles []profile.Config
	// Extenders are programs that are asked over HTTP beside the plugins.
	Extenders []configv1.Extender
	// InitialBackoff and MaxBackoff bound the wait of a pod that has failed; 0
	// means 1 s and 10 s.
	InitialBackoff, MaxBackoff time.Duration
	// Parallelism bounds the goroutines that filter and score; 0 means GOMAXPROCS.
	Parallelism int

	// Client and Election are for a scheduler that is a process of its own: how it
	// reaches the API server, and which lease it holds. What the file leaves out is zero.
	Client   componentconfig.ClientConnectionConfiguration
	Election componentconfig.LeaderElectionConfiguration
}

// Load reads the file at path.
func Load(path string) (Settings, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Settings{}, err
	}
	return Parse(data)
}

// Parse reads a file's content, YAML or JSON.
func Parse(data []byte) (Settings, error) {
	c, err := decode(data)
	if err != nil {
		return Settings{}, err
	}
	return From(c)
}

// From completes and checks a configuration. It changes c.
func From(c *configv1.KubeSchedulerConfiguration) (Settings, error) {
	if err := setDefaults(c); err != nil {
		return Settings{}, err
	}
	if err := validate(c); err != nil {
		return Settings{}, err
	}
	return settings(c), nil
}

// strict decodes files; an unknown or repeated field is an error.
var strict = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	if err := configv1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

func decode(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	obj, gvk, err := strict.Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	c, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("couldn't decode as KubeSchedulerConfiguration, got %s: ", gvk)
	}
	return c, c.DecodeNestedObjects(strict)
}

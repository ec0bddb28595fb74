// Package images brings container images onto the node and takes unused ones
// away: pull policies, registry credentials, backoff between failed pulls, and
// garbage collection by disk use.
package images

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
	"k8s.io/utils/clock"

	"proa/internal/kubelet/cri"
)

// Waiting reasons of a container whose image is not there.
const (
	ErrImagePull     = "ErrImagePull"
	ImagePullBackOff = "ImagePullBackOff"
	ErrImageNever    = "ErrImageNeverPull"
	ErrImageInspect  = "ImageInspectError"
	InvalidImageName = "InvalidImageName"
)

// Error says why an image is not there: a waiting reason and its message.
type Error struct {
	Reason, Message string
	// Retry is when to ask again; zero when nothing says so.
	Retry time.Duration
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// showFailure is how long a failed pull is shown as such before the container
// is said to wait for the next.
const showFailure = 2 * time.Second

// Config makes a Puller.
type Config struct {
	Runtime *cri.Runtime
	// Secret reads a pull secret of the pod's namespace.
	Secret func(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// Parallel bounds the pulls in flight; 0: no bound.
	Parallel int
	// QPS bounds the pulls begun in a second, after a burst; 0: no bound.
	QPS, Burst int32
	Recorder   record.EventRecorder
	Clock      clock.WithTicker
}

// Puller makes images present. It is safe for concurrent use.
type Puller struct {
	c       Config
	slots   chan struct{} // nil: as many as come
	rate    flowcontrol.PassiveRateLimiter
	backoff *flowcontrol.Backoff
	failed  failures
}

// New makes a Puller.
func New(c Config) *Puller {
	b := flowcontrol.NewBackOff(10*time.Second, 5*time.Minute)
	b.Clock = c.Clock
	p := &Puller{c: c, rate: flowcontrol.NewFakeAlwaysRateLimiter(), backoff: b}
	if c.Parallel > 0 {
		p.slots = make(chan struct{}, c.Parallel)
	}
	if c.QPS > 0 {
		p.rate = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(c.QPS), int(c.Burst), c.Clock)
	}
	return p
}

// Request asks for one image on behalf of a pod.
type Request struct {
	Pod     *corev1.Pod
	Object  *corev1.ObjectReference // what events are about: a container of the pod
	Image   string
	Policy  corev1.PullPolicy
	Handler string // runtime handler of the pod's RuntimeClass
}

// Ensure returns the image when it is present, pulling it as the policy says.
// Its error is an *Error, or the context's.
func (p *Puller) Ensure(ctx context.Context, r Request) (*runtimeapi.Image, error) {
	named, err := Normalize(r.Image)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: %v", r.Image, err)
		p.c.Recorder.Event(r.Object, corev1.EventTypeWarning, "InspectFailed", msg)
		return nil, &Error{Reason: InvalidImageName, Message: msg}
	}
	spec := &runtimeapi.ImageSpec{Image: named.String(), UserSpecifiedImage: r.Image, RuntimeHandler: r.Handler}
	image, err := p.status(ctx, spec)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		msg := fmt.Sprintf("Failed to inspect image %q: %v", r.Image, cri.Message(err))
		p.c.Recorder.Event(r.Object, corev1.EventTypeWarning, "InspectFailed", msg)
		return nil, &Error{Reason: ErrImageInspect, Message: msg}
	}
	if image != nil && policy(r, named) != corev1.PullAlways {
		p.c.Recorder.Eventf(r.Object, corev1.EventTypeNormal, "Pulled", "Container image %q already present on machine and can be accessed by the pod", r.Image)
		return image, nil
	}
	if image == nil && r.Policy == corev1.PullNever {
		msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image)
		p.c.Recorder.Event(r.Object, corev1.EventTypeWarning, ErrImageNever, msg)
		return nil, &Error{Reason: ErrImageNever, Message: msg}
	}
	return p.pull(ctx, r, named, spec)
}

func policy(r Request, named reference.Named) corev1.PullPolicy {
	if r.Policy != "" {
		return r.Policy
	}
	if t, ok := named.(reference.Tagged); ok && t.Tag() == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func (p *Puller) status(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	resp, err := p.c.Runtime.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return nil, err
	}
	return resp.Image, nil
}

func (p *Puller) pull(ctx context.Context, r Request, named reference.Named, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	key := string(r.Pod.UID) + "_" + r.Image
	if p.backoff.IsInBackOffSinceUpdate(key, p.c.Clock.Now()) {
		msg := fmt.Sprintf("Back-off pulling image %q", r.Image)
		p.c.Recorder.Event(r.Object, corev1.EventTypeNormal, "BackOff", msg)
		last := p.failed.get(key)
		if last.text != "" {
			msg += ": " + last.text
		}
		return nil, &Error{Reason: ImagePullBackOff, Message: msg, Retry: last.until.Sub(p.c.Clock.Now())}
	}
	p.c.Recorder.Eventf(r.Object, corev1.EventTypeNormal, "Pulling", "Pulling image %q", r.Image)
	queued := p.c.Clock.Now()
	if p.slots != nil {
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	started := p.c.Clock.Now()
	err := p.fetch(ctx, r, named, spec)
	var image *runtimeapi.Image
	if err == nil {
		image, err = p.status(ctx, spec)
	}
	if err == nil && image == nil {
		err = fmt.Errorf("image %q is gone after its pull", r.Image)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, p.pullFailed(r, key, err)
	}
	now := p.c.Clock.Now()
	p.c.Recorder.Eventf(r.Object, corev1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		r.Image, now.Sub(started).Truncate(time.Millisecond), now.Sub(queued).Truncate(time.Millisecond), image.Size)
	p.backoff.DeleteEntry(key)
	p.failed.forget(key)
	p.backoff.GC()
	return image, nil
}

func (p *Puller) pullFailed(r Request, key string, err error) error {
	reason, msg := classify(r.Image, err)
	p.c.Recorder.Eventf(r.Object, corev1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", r.Image, cri.Message(err))
	p.backoff.Next(key, p.c.Clock.Now())
	p.failed.set(key, failure{reason + ": " + msg, p.c.Clock.Now().Add(p.backoff.Get(key))})
	return &Error{Reason: reason, Message: msg, Retry: showFailure}
}

// classify maps a runtime's error to a waiting reason.
func classify(image string, err error) (reason, msg string) {
	text := cri.Message(err)
	for known, format := range map[error]string{
		crierrors.ErrRegistryUnavailable:       "image pull failed for %s because the registry is unavailable",
		crierrors.ErrSignatureValidationFailed: "image pull failed for %s because the signature validation failed",
	} {
		if errors.Is(err, known) || strings.HasPrefix(text, known.Error()) {
			msg = fmt.Sprintf(format, image)
			if rest := strings.TrimPrefix(strings.TrimPrefix(text, known.Error()), ": "); rest != "" {
				msg += ": " + rest
			}
			return known.Error(), msg
		}
	}
	return ErrImagePull, text
}

var errPullRate = errors.New("pull QPS exceeded")

// fetch tries the pod's credentials for the image one after the other, or pulls
// without any when none match.
func (p *Puller) fetch(ctx context.Context, r Request, named reference.Named, spec *runtimeapi.ImageSpec) error {
	auths := p.keyring(ctx, r).Lookup(named.Name())
	if len(auths) == 0 {
		auths = []*runtimeapi.AuthConfig{nil}
	}
	if !p.rate.TryAccept() {
		return errPullRate
	}
	var errs []error
	for _, a := range auths {
		_, err := p.c.Runtime.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: spec, Auth: a})
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func (p *Puller) keyring(ctx context.Context, r Request) *Keyring {
	k := &Keyring{}
	var missing []string
	for _, ref := range r.Pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := p.c.Secret(ctx, r.Pod.Namespace, ref.Name)
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		k.Add(s)
	}
	if len(missing) > 0 {
		p.c.Recorder.Eventf(r.Pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", "))
	}
	return k
}

// Normalize completes an image name as Docker does: registry, library/ and the
// tag latest.
func Normalize(image string) (reference.Named, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil, fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	return reference.TagNameOnly(named), nil
}

// failure is the last failed pull of an image for a pod, and when the next may be.
type failure struct {
	text  string
	until time.Time
}

type failures struct {
	mu sync.Mutex
	m  map[string]failure // guarded by mu
}

func (f *failures) get(key string) failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.m[key]
}

func (f *failures) set(key string, v failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.m == nil {
		f.m = map[string]failure{}
	}
	f.m[key] = v
}

func (f *failures) forget(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.m, key)
}

package source

import (
	"context"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	kuberest "k8s.io/client-go/rest"
)

// clusterAPI is what is asked of a cluster's API. client-go's own client for the group core can do no more for us, and
// brings the types of every other group into the program: a seventh of its size.
type clusterAPI interface {
	Pods(namespace string) watchable[*core.PodList]
	Events(namespace string) watchable[*core.EventList]
}

// watchable is one kind of object in a namespace.
type watchable[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// coreAPI is the group core over HTTP.
type coreAPI struct {
	client     kuberest.Interface
	parameters runtime.ParameterCodec
}

func newCoreAPI(cfg *kuberest.Config) (*coreAPI, error) {
	scheme := runtime.NewScheme()
	if err := core.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg = kuberest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &core.SchemeGroupVersion, "/api"
	cfg.NegotiatedSerializer = kuberest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
	client, err := kuberest.RESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return &coreAPI{client, runtime.NewParameterCodec(scheme)}, nil
}

// Pods implements clusterAPI.
func (a *coreAPI) Pods(namespace string) watchable[*core.PodList] {
	return &resource[*core.PodList]{a, "pods", namespace, func() *core.PodList { return &core.PodList{} }}
}

// Events implements clusterAPI.
func (a *coreAPI) Events(namespace string) watchable[*core.EventList] {
	return &resource[*core.EventList]{a, "events", namespace, func() *core.EventList { return &core.EventList{} }}
}

// resource is one kind of object of the group core in a namespace, or with "" in all of them.
type resource[L runtime.Object] struct {
	api             *coreAPI
	name, namespace string
	empty           func() L
}

// List implements watchable.
func (r *resource[L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	list := r.empty()
	return list, r.get(&o).Do(ctx).Into(list)
}

// Watch implements watchable.
func (r *resource[L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return r.get(&o).Watch(ctx)
}

func (r *resource[L]) get(o *metav1.ListOptions) *kuberest.Request {
	var timeout time.Duration
	if o.TimeoutSeconds != nil {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	return r.api.client.Get().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name).
		VersionedParams(o, r.api.parameters).Timeout(timeout)
}

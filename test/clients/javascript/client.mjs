// What a program with the JavaScript client does: create, read, list in pages,
// replace, patch, watch, follow with an informer, run a command in a container,
// read its log, delete. Usage: node client.mjs NAMESPACE IMAGE. Every step that
// worked is one line of output.
import assert from 'node:assert/strict';
import { PassThrough, Writable } from 'node:stream';
import * as k8s from '@kubernetes/client-node';

const [namespace, image] = process.argv.slice(2);
const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);

const done = (step) => console.log('ok', step);

// collect is a stream that keeps what is written to it.
function collect() {
  let text = '';
  const stream = new Writable({ write(chunk, _, next) { text += chunk; next(); } });
  return { stream, text: () => text };
}

// until calls look for every object that the informer tells of, until it is true.
function until(informer, look) {
  return new Promise((resolve, reject) => {
    for (const event of ['add', 'update']) {
      informer.on(event, (obj) => { if (look(obj)) resolve(obj); });
    }
    informer.on('error', reject);
  });
}

async function objects() {
  const name = 'from-javascript';
  const created = await core.createNamespacedConfigMap({ namespace, body: { metadata: { name, labels: { by: 'js' } }, data: { a: '1' } } });
  assert.equal(created.data.a, '1');
  assert.ok(created.metadata.uid);
  done('create');

  const read = await core.readNamespacedConfigMap({ namespace, name });
  assert.equal(read.metadata.uid, created.metadata.uid);
  assert.ok(read.metadata.creationTimestamp instanceof Date);
  done('read');

  read.data = { a: '2' };
  const replaced = await core.replaceNamespacedConfigMap({ namespace, name, body: read });
  assert.equal(replaced.data.a, '2');
  await assert.rejects(core.replaceNamespacedConfigMap({ namespace, name, body: read }), { code: 409 });
  done('replace, and a conflict');

  const patched = await core.patchNamespacedConfigMap(
    { namespace, name, body: [{ op: 'add', path: '/data/b', value: '3' }] },
    k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.JsonPatch));
  assert.deepEqual(patched.data, { a: '2', b: '3' });
  const applied = await core.patchNamespacedConfigMap(
    { namespace, name, fieldManager: 'js', force: true, body: { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name }, data: { c: '4' } } },
    k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.ServerSideApply));
  assert.equal(applied.data.c, '4');
  done('patch and server-side apply');

  for (const i of [1, 2]) {
    await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: `page-${i}`, labels: { by: 'js' } } } });
  }
  const names = [];
  let _continue;
  do {
    const page = await core.listNamespacedConfigMap({ namespace, labelSelector: 'by=js', limit: 2, _continue });
    assert.ok(page.items.length <= 2);
    names.push(...page.items.map((cm) => cm.metadata.name));
    _continue = page.metadata._continue;
  } while (_continue);
  assert.deepEqual(names, [name, 'page-1', 'page-2']);
  done('list in pages');

  await core.deleteNamespacedConfigMap({ namespace, name });
  await assert.rejects(core.readNamespacedConfigMap({ namespace, name }), { code: 404 });
  done('delete, and not found');

  const generic = k8s.KubernetesObjectApi.makeApiClient(config);
  const secret = await generic.create({ apiVersion: 'v1', kind: 'Secret', metadata: { name: 'generic', namespace }, stringData: { k: 'v' } });
  assert.equal(Buffer.from(secret.data.k, 'base64').toString(), 'v');
  await generic.delete(secret);
  done('objects without a typed client');
}

async function watching() {
  const path = `/api/v1/namespaces/${namespace}/configmaps`;
  const seen = [];
  await new Promise((resolve, reject) => {
    new k8s.Watch(config).watch(path, { labelSelector: 'watched=yes' }, (type, obj) => {
      seen.push(`${type} ${obj.metadata.name}`);
      if (type === 'DELETED') resolve();
    }, (err) => { if (err && err.name !== 'AbortError') reject(err); }).then(async (controller) => {
      const body = { metadata: { name: 'watched', labels: { watched: 'yes' } } };
      await core.createNamespacedConfigMap({ namespace, body });
      await core.replaceNamespacedConfigMap({ namespace, name: 'watched', body: { ...body, data: { a: 'b' } } });
      await core.deleteNamespacedConfigMap({ namespace, name: 'watched' });
      return controller;
    }).catch(reject);
  });
  assert.deepEqual(seen, ['ADDED watched', 'MODIFIED watched', 'DELETED watched']);
  done('watch');
}

async function workload() {
  const labels = { app: 'js' };
  const path = `/api/v1/namespaces/${namespace}/pods`;
  const informer = k8s.makeInformer(config, path, () => core.listNamespacedPod({ namespace, labelSelector: 'app=js' }), 'app=js');
  const ready = until(informer, (pod) => pod.status?.conditions?.some((c) => c.type === 'Ready' && c.status === 'True'));
  await informer.start();
  await apps.createNamespacedDeployment({
    namespace,
    body: {
      metadata: { name: 'js' },
      spec: {
        replicas: 1, selector: { matchLabels: labels },
        template: {
          metadata: { labels },
          spec: { terminationGracePeriodSeconds: 0, containers: [{ name: 'c', image, command: ['sh', '-c', 'echo hello from the log; exec sleep 3600'] }] },
        },
      },
    },
  });
  const pod = (await ready).metadata.name;
  await informer.stop();
  done('informer');

  const out = collect(), err = collect();
  const input = new PassThrough();
  const status = await new Promise((resolve, reject) => {
    new k8s.Exec(config).exec(namespace, pod, 'c', ['sh', '-c', 'read line; echo "got $line"; echo oops >&2; exit 3'],
      out.stream, err.stream, input, false, resolve).then(() => input.write('a line\n'), reject);
  });
  assert.equal(out.text(), 'got a line\n');
  assert.equal(err.text(), 'oops\n');
  assert.equal(status.status, 'Failure');
  assert.equal(status.details.causes[0].message, '3');
  done('exec');

  const log = collect();
  await new Promise((resolve, reject) => {
    log.stream.on('finish', resolve).on('error', reject);
    new k8s.Log(config).log(namespace, pod, 'c', log.stream, { follow: false, tailLines: 10 }).catch(reject);
  });
  assert.equal(log.text(), 'hello from the log\n');
  done('logs');

  const scale = await apps.readNamespacedDeploymentScale({ namespace, name: 'js' });
  assert.equal(scale.spec.replicas, 1);
  await apps.deleteNamespacedDeployment({ namespace, name: 'js', propagationPolicy: 'Background' });
  done('scale and delete of a deployment');
}

await objects();
await watching();
await workload();
process.exit(0); // sockets that are kept alive are no reason to wait

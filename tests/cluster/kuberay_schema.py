"""The shape of a RayCluster and a RayJob, as far as cluster/kuberay uses them; any other field is refused.

Written by hand after the types of KubeRay 1.5 (ray-operator/apis/ray/v1), whose CRDs are in no package on PyPI: field
names, which are required, and their types. Of a pod it knows what the manifests say.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}  # a number here must stand in quotes


def fields(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these fields and no other."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


_QUANTITIES = fields(cpu=TEXT, memory=TEXT, **{"nvidia.com/gpu": TEXT})
_CONTAINER = fields(
    ("name", "image"),
    name=TEXT,
    image=TEXT,
    resources=fields(("limits", "requests"), limits=_QUANTITIES, requests=_QUANTITIES),
    ports=listed(fields(("containerPort",), containerPort=COUNT, name={"type": "string", "maxLength": 15})),
    volumeMounts=listed(fields(("name", "mountPath"), name=TEXT, mountPath=TEXT, readOnly={"type": "boolean"})),
)
_POD = fields(
    ("spec",),
    spec=fields(
        ("containers",),
        containers=listed(_CONTAINER),
        nodeSelector=TEXTS,
        tolerations=listed(
            fields(
                key=TEXT,
                operator={"enum": ["Exists", "Equal"]},
                value=TEXT,
                effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            )
        ),
        terminationGracePeriodSeconds=COUNT,
        volumes=listed(
            fields(
                ("name",),
                name=TEXT,
                persistentVolumeClaim=fields(("claimName",), claimName=TEXT, readOnly={"type": "boolean"}),
                configMap=fields(("name",), name=TEXT, optional={"type": "boolean"}),
            )
        ),
    ),
)
_RAY_CLUSTER_SPEC = fields(
    ("headGroupSpec",),
    rayVersion=TEXT,
    authOptions=fields(mode={"enum": ["token", "disabled"]}),
    enableInTreeAutoscaling={"type": "boolean"},
    autoscalerOptions=fields(
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=COUNT,
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
    ),
    headGroupSpec=fields(("template",), template=_POD, rayStartParams=TEXTS, labels=TEXTS),
    workerGroupSpecs=listed(
        fields(
            ("groupName", "minReplicas", "maxReplicas", "template"),
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            labels=TEXTS,
            rayStartParams=TEXTS,
            template=_POD,
        )
    ),
)


def _resource(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return fields(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=fields(("name",), name={"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,48}[a-z0-9])?$"}),
        spec=spec,
    )


RAY_CLUSTER = _resource("RayCluster", _RAY_CLUSTER_SPEC)
RAY_JOB = _resource(
    "RayJob",
    fields(
        ("entrypoint", "rayClusterSpec"),
        entrypoint=TEXT,
        entrypointNumGpus={"type": "number", "minimum": 0},
        backoffLimit=COUNT,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        runtimeEnvYAML=TEXT,
        rayClusterSpec=_RAY_CLUSTER_SPEC,
    ),
)

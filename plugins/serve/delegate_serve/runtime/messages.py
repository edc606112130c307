"""The messages of the open inference protocol over gRPC, made at import from their fields.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_grpc.md describes them. The
numbers of the fields are the protocol; the names of messages are local.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = "inference.GRPCInferenceService"

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}
# Message -> field -> its number and type; "*" before a type repeats it, "|" makes it a choice, "%" a map from text.
_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "Empty": {},
    "Live": {"live": (1, "bool")},
    "Ready": {"ready": (1, "bool")},
    "ModelName": {"name": (1, "string"), "version": (2, "string")},
    "Server": {"name": (1, "string"), "version": (2, "string"), "extensions": (3, "*string")},
    "TensorDescription": {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "*int64")},
    "ModelDescription": {
        "name": (1, "string"),
        "versions": (2, "*string"),
        "platform": (3, "string"),
        "inputs": (4, "*TensorDescription"),
        "outputs": (5, "*TensorDescription"),
    },
    "Parameter": {
        "bool_param": (1, "|bool"),
        "int64_param": (2, "|int64"),
        "string_param": (3, "|string"),
        "double_param": (4, "|double"),
        "uint64_param": (5, "|uint64"),
    },
    "Contents": {
        "bool_contents": (1, "*bool"),
        "int_contents": (2, "*int32"),
        "int64_contents": (3, "*int64"),
        "uint_contents": (4, "*uint32"),
        "uint64_contents": (5, "*uint64"),
        "fp32_contents": (6, "*float"),
        "fp64_contents": (7, "*double"),
        "bytes_contents": (8, "*bytes"),
    },
    "Tensor": {
        "name": (1, "string"),
        "datatype": (2, "string"),
        "shape": (3, "*int64"),
        "parameters": (4, "%Parameter"),
        "contents": (5, "Contents"),
    },
    "RequestedOutput": {"name": (1, "string"), "parameters": (2, "%Parameter")},
    "IndexRequest": {"repository_name": (1, "string"), "ready": (2, "bool")},
    "IndexRow": {"name": (1, "string"), "version": (2, "string"), "state": (3, "string"), "reason": (4, "string")},
    "Index": {"models": (1, "*IndexRow")},
    "LoadRequest": {"repository_name": (1, "string"), "model_name": (2, "string"), "parameters": (3, "*bytes")},
    "RegionName": {"name": (1, "string")},
    "Region": {
        "name": (1, "string"),
        "key": (2, "string"),
        "offset": (3, "uint64"),
        "byte_size": (4, "uint64"),
    },
    "RegionStatus": {"regions": (1, "%Region")},
    "InferRequest": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, "%Parameter"),
        "inputs": (5, "*Tensor"),
        "outputs": (6, "*RequestedOutput"),
        "raw_input_contents": (7, "*bytes"),
    },
    "BinaryData": {"raw_input_contents": (7, "*bytes")},  # of InferRequest, whose other fields it does not parse
    "InferResponse": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, "%Parameter"),
        "outputs": (5, "*Tensor"),
        "raw_output_contents": (6, "*bytes"),
    },
}


def _message_classes() -> dict[str, Any]:
    """Return the class of each message."""
    file = descriptor_pb2.FileDescriptorProto(name="open_inference.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()  # a client in this process has the same package in the default pool
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS}


def _add(message: Any, name: str, number: int, kind: str) -> None:
    """Add a field to the description of a message."""
    repeated = kind[0] in "*%"
    field = message.field.add(name=name, number=number)
    field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    plain = kind.lstrip("*|%")
    if kind[0] == "%":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add(entry, "key", 1, "string")
        _add(entry, "value", 2, plain)
        plain = f"{message.name}.{entry.name}"
    if kind[0] == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0
    if plain in _TYPES:
        field.type = _TYPES[plain]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{plain}"


CLASSES = _message_classes()

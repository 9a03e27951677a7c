"""A software bill of materials in CycloneDX, from the release and its lock: the same text for the same release."""

from __future__ import annotations

import uuid
from datetime import date, datetime, time, timezone

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as Entry
from cyclonedx.model.component import ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from trackbed.errors import Problem, ReleaseError
from trackbed.release import Component, Release, requirements
from trackbed.release.lock import pins

NAMESPACE = uuid.UUID("6f8f3f0e-6a1e-4d7a-9d0b-7f2c8f0e2611")


def sbom(release: Release, variant: str, *, vendor: bool = False) -> str:
    """CycloneDX 1.6 as JSON; `vendor`: with NVIDIA's archives in the image.

    Its date is the release's, so that two runs over one release give the same text.
    """
    path = requirements() / release.name / f"{variant}.lock"
    if not path.exists():
        what = f"there is no locked file of {release.name} for {variant}"
        raise ReleaseError(Problem(id="release.no-lock", where=str(path), what=what, remedy="make lock"))
    locked = pins(path.read_text("utf-8")) | (_more_wheels(release, vendor) if variant == "gpu" else {})
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, f"{release.name} {variant} {sorted(locked.items())}"))
    bom.metadata.timestamp = datetime.combine(release.lock.before or date.min, time(), timezone.utc)
    root = Entry(name="trackbed", version=f"{release.name}-{variant}", type=ComponentType.CONTAINER, bom_ref="trackbed")
    bom.metadata.component = root
    by_package = {part.package.lower(): part for part in release.components.values() if part.package}
    entries = [_wheel(name, version, by_package.get(name)) for name, version in locked.items()]
    others = [part for part in release.components.values() if variant in part.variants]
    entries += [_other(part) for part in others if part.apt or (vendor and part.archive)]
    entries.append(Entry(name=release.base_image, type=ComponentType.OPERATING_SYSTEM, bom_ref="base-image"))
    bom.components.update(entries)
    bom.register_dependency(root, entries)
    return str(JsonV1Dot6(bom).output_as_string(indent=2))


def _more_wheels(release: Release, vendor: bool) -> dict[str, str]:
    """The wheels that come with NVIDIA's archives, or that stand in for them; they have locks of their own."""
    paths = [requirements() / release.name / f"{name}.lock" for name in ("library", *(["vendor"] if vendor else []))]
    return {name: version for path in paths if path.exists() for name, version in pins(path.read_text("utf-8")).items()}


def _wheel(name: str, version: str, part: Component | None) -> Entry:
    purl = PackageURL("pypi", name=name, version=version)
    return Entry(
        name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl), properties=_facts(part)
    )


def _other(part: Component) -> Entry:
    if part.apt:
        purl = PackageURL("deb", "debian", part.apt, part.version)
        return Entry(name=part.apt, version=part.version, purl=purl, bom_ref=str(purl), properties=_facts(part))
    purl = PackageURL("generic", name=part.name, version=part.version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=part.digest)] if part.digest else []
    origin = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(part.archive), hashes=hashes)
    return Entry(
        name=part.name,
        version=part.version,
        purl=purl,
        bom_ref=str(purl),
        external_references=[origin],
        properties=_facts(part),
    )


def _facts(part: Component | None) -> list[Property]:
    """What the release says of a component beyond its version."""
    if part is None:
        return []
    facts = {
        "status": part.status,
        "confidence": part.confidence,
        "rule": part.rule,
        "stands-in-for": part.substitute and part.version,
    }
    return [Property(name=f"trackbed:{name}", value=value) for name, value in facts.items() if value]

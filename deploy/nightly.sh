#!/bin/sh
# What the pipeline does each night (docs/reference/pipeline.md): usage ingest, compact, gaps and report, and if wanted recommend
# and plan. It is run by deploy/systemd/kafka-throttle-nightly.service and by the image `pipeline` of the Dockerfile.
#
#   NIGHTLY_TABLE      the table, a path                                                               required
#   NIGHTLY_OUT        the directory for report/, advice/ and plan.json                                required
#   NIGHTLY_INGEST     options of ingest: "--from DIRECTORY", or "--from-topic T --bootstrap-server S" required
#   NIGHTLY_REPORT     more options of report: "--since -9w", which it has if this is not set, "--prices FILE"
#   NIGHTLY_RECOMMEND  options of recommend: "--since -28d --capacity FILE"; without any it is not run
#   NIGHTLY_KEEP_DAYS  how many days of records stay in the table: 400; without it all do
#   NIGHTLY_PLAN       options of plan for stage 1 of recommend: "--bootstrap-server S"; without any it is not run
#   NIGHTLY_SPARK      options of all but plan, which start Spark: "--memory 4g"
#
# Blanks separate options; there is no quoting. Exit status:
#
#   0  everything is done, and no record is missing
#   1  everything is done, but records are missing: see what gaps printed
#   2  a command failed. After ingest nothing else is run; after any other command all others that do not need it are
#   3  everything is done, but there are no records to report on
set -fu
if [ -z "${NIGHTLY_TABLE:-}" ] || [ -z "${NIGHTLY_OUT:-}" ] || [ -z "${NIGHTLY_INGEST:-}" ]; then
    echo "nightly: expected values of NIGHTLY_TABLE, NIGHTLY_OUT and NIGHTLY_INGEST, got nothing for one of them" >&2
    exit 2
fi
status=0
child=

# A shell waits for its command to end before it takes a signal up, but not for one in the background.
trap 'kill -TERM $child 2>/dev/null; wait $child; exit 143' TERM INT

run() {
    echo "nightly: usage $1" >&2
    kafka-throttle usage "$@" &
    child=$!
    wait $child
    code=$?
    child=
    return $code
}

failed() {
    echo "nightly: usage $1 failed with exit status $code" >&2
    status=2
}

may_be() {
    [ $status -ne 0 ] || status=$1
}

spark="--table $NIGHTLY_TABLE ${NIGHTLY_SPARK:-}"
# shellcheck disable=SC2086
{
    run ingest $spark $NIGHTLY_INGEST || { failed ingest; exit 2; }
    [ -z "${NIGHTLY_KEEP_DAYS:-}" ] || run expire $spark --before "-${NIGHTLY_KEEP_DAYS}d" || failed expire
    run compact $spark || failed compact
    run gaps $spark || case $code in 1) may_be 1 ;; *) failed gaps ;; esac
    run report $spark --out "$NIGHTLY_OUT/report" ${NIGHTLY_REPORT---since -9w} || case $code in 3) may_be 3 ;; *) failed report ;; esac
    if [ "${NIGHTLY_RECOMMEND:-}" ]; then
        if run recommend $spark --out "$NIGHTLY_OUT/advice" $NIGHTLY_RECOMMEND; then
            [ -z "${NIGHTLY_PLAN:-}" ] ||
                run plan --quotas "$NIGHTLY_OUT/advice/stage-1.yaml" --out "$NIGHTLY_OUT/plan.json" $NIGHTLY_PLAN ||
                failed plan
        elif [ $code -ne 3 ]; then # 3: nothing is recommended, which is an answer
            failed recommend
        fi
    fi
}
exit $status

// bench/bench_simdjson.cpp: the same bytes through Debian's simdjson DOM parser, counting events
// only: what the fastest general parser takes before any span is made. Prints MB/s of JSON a core.
//
//     bench_simdjson FILE.json
#include <cstdio>
#include <ctime>
#include <simdjson.h>

static double cpu_seconds()
{
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        std::fprintf(stderr, "usage: bench_simdjson FILE.json (plain, not gzip)\n");
        return 2;
    }
    double best = 1e30;
    size_t n_bytes = 0, n_events = 0;
    for (int i = 0; i < 3; i++) {
        double start = cpu_seconds();
        simdjson::padded_string text;
        simdjson::dom::parser parser;
        simdjson::dom::element document;
        simdjson::dom::array events;
        auto error = simdjson::padded_string::load(argv[1]).get(text);
        if (!error)
            error = parser.parse(text).get(document);
        if (!error)
            error =
                document.is_array() ? document.get(events) : document["traceEvents"].get(events);
        if (error) {
            std::fprintf(stderr, "%s: %s\n", argv[1], simdjson::error_message(error));
            return 3;
        }
        n_events = 0;
        for (simdjson::dom::element event : events)
            n_events += event.is_object();
        double seconds = cpu_seconds() - start;
        n_bytes = text.size();
        if (seconds < best)
            best = seconds;
    }
    std::printf("%.0f MB/s of JSON a core (%.1f MB, %zu events, %.3f s CPU)\n",
                static_cast<double>(n_bytes) / best / 1e6, static_cast<double>(n_bytes) / 1e6,
                n_events, best);
    return 0;
}

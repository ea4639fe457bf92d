// bench/bench_simdjson.cpp: the same bytes through Debian's simdjson, as its authors advise: its
// On-Demand parser, built for this machine and made once, on text that lies in memory; parsing
// only. Of each event it gets what every span has: name, phase, start and duration. Prints the best
// MB/s of JSON a core.
//
//     bench_simdjson FILE.json
#include <cstdio>
#include <ctime>
#include <simdjson.h>

namespace
{

using namespace simdjson;

struct seen {
    size_t n_events, n_bytes; // bytes of names and phases
    double us;                // starts and durations, added up
};

double cpu_seconds()
{
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

error_code read_event(ondemand::object event, seen &seen)
{
    seen.n_events++;
    for (auto field : event) {
        ondemand::raw_json_string key;
        SIMDJSON_TRY(field.key().get(key));
        if (key == "name" || key == "ph") {
            std::string_view text;
            if (!field.value().get_string().get(text))
                seen.n_bytes += text.size();
        } else if (key == "ts" || key == "dur") {
            double us;
            if (!field.value().get_double().get(us))
                seen.us += us;
        }
    }
    return SUCCESS;
}

error_code read_events(ondemand::array events, seen &seen)
{
    for (auto value : events) {
        ondemand::object event;
        SIMDJSON_TRY(value.get_object().get(event));
        SIMDJSON_TRY(read_event(event, seen));
    }
    return SUCCESS;
}

error_code read(ondemand::parser &parser, const padded_string &text, seen &seen)
{
    ondemand::document document;
    ondemand::json_type type;
    ondemand::array events;
    SIMDJSON_TRY(parser.iterate(text).get(document));
    SIMDJSON_TRY(document.type().get(type));
    if (type == ondemand::json_type::array) {
        SIMDJSON_TRY(document.get_array().get(events));
    } else {
        SIMDJSON_TRY(document["traceEvents"].get_array().get(events));
    }
    return read_events(events, seen);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2) {
        std::fprintf(stderr, "usage: bench_simdjson FILE.json (plain, not gzip)\n");
        return 2;
    }
    padded_string text;
    ondemand::parser parser;
    seen seen{};
    double best = 1e30;
    auto error = padded_string::load(argv[1]).get(text);
    for (int i = 0; i < 5 && !error; i++) {
        seen = {};
        double start = cpu_seconds();
        error = read(parser, text, seen);
        double seconds = cpu_seconds() - start;
        if (seconds < best)
            best = seconds;
    }
    if (error) {
        std::fprintf(stderr, "%s: %s\n", argv[1], error_message(error));
        return 3;
    }
    double mb = static_cast<double>(text.size()) / 1e6;
    std::printf("%.0f MB/s of JSON a core (%.1f MB, %zu events, %zu bytes of text, %.3g us, %.3f s "
                "CPU)\n",
                mb / best, mb, seen.n_events, seen.n_bytes, seen.us, best);
    return 0;
}

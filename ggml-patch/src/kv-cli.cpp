#include "kv-cli.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define KV_CLI_N_CTX      1500
#define KV_CLI_MIN_BUDGET 64 // smallest that calibration/candidates.toml tries

[[noreturn]] static void fail(const char * flag, const char * value, const char * expected) {
    fprintf(stderr, "error: %s %s: expected %s\n", flag, value, expected);
    exit(2);
}

// the value as a number; `suffix` may follow it when it is not 0
static double parse_number(const char * flag, const char * value, const char * expected, char suffix = 0, bool * has_suffix = nullptr) {
    char * end = nullptr;

    const double x = strtod(value, &end);
    const bool   s = end != value && suffix && *end == suffix;

    if (end == value || end[s] != 0 || !std::isfinite(x)) {
        fail(flag, value, expected);
    }
    if (has_suffix) {
        *has_suffix = s;
    }

    return x;
}

static float parse_share(const char * flag, const char * value) {
    const char * expected = "a number from 0 to 1";

    const double x = parse_number(flag, value, expected);
    if (x < 0.0 || x > 1.0) {
        fail(flag, value, expected);
    }

    return x;
}

static int parse_budget(const char * flag, const char * value) {
    const char * expected = "1 to 1500 positions, or a share of them like 12.5%";

    bool percent = false;

    const double x = parse_number(flag, value, expected, '%', &percent);
    const double n = percent ? std::round(x/100.0*KV_CLI_N_CTX) : x;

    if (n < 1.0 || n > KV_CLI_N_CTX || n != std::floor(n)) {
        fail(flag, value, expected);
    }

    return n;
}

static int parse_rule(const char * flag, const char * value) {
    const int rule = whisper_kv_rule_from_name(value);

    if (rule < 0) {
        std::string names = "one of";
        for (int i = 0; i < WHISPER_KV_RULE_COUNT; ++i) {
            names += std::string(i ? ", " : " ") + whisper_kv_rule_name(i);
        }
        fail(flag, value, names.c_str());
    }

    return rule;
}

bool kv_cli_parse(kv_cli_params & params, int argc, char ** argv, int & i) {
    const char * flag = argv[i];

    if (strcmp(flag, "--kv-stats") == 0) {
        params.stats = true;
        return true;
    }

    static const char * const with_value[] = {
        "--kv-profile", "--kv-rule", "--kv-budget", "--kv-sink-frac", "--kv-tau", "--kv-stats-json",
    };

    bool known = false;
    for (const char * name : with_value) {
        known |= strcmp(flag, name) == 0;
    }
    if (!known) {
        return false;
    }

    if (i + 1 >= argc) {
        fail(flag, "", "a value");
    }
    const char * value = argv[++i];

    const std::string name = flag;

    if      (name == "--kv-profile")    { params.profile       = value; }
    else if (name == "--kv-stats-json") { params.stats_json    = value; }
    else if (name == "--kv-rule")       { params.rule          = parse_rule  (flag, value); params.has_rule          = true; }
    else if (name == "--kv-budget")     { params.budget        = parse_budget(flag, value); params.has_budget        = true; }
    else if (name == "--kv-sink-frac")  { params.sink_fraction = parse_share (flag, value); params.has_sink_fraction = true; }
    else if (name == "--kv-tau")        { params.tau           = parse_share (flag, value); params.has_tau           = true; }

    return true;
}

void kv_cli_print_usage() {
    whisper_kv_view_params params = { sizeof(params) };
    whisper_kv_view_default_params(&params);

    fprintf(stderr, "Reduced cross-attention view (padsink) options:\n");
    fprintf(stderr, "             --kv-profile FILE      calibrated settings, written by `pyharness calibrate`\n");
    fprintf(stderr, "             --kv-rule NAME         [%-7s] rule that chooses the positions a step reads:\n", "off");
    fprintf(stderr, "                                   ");
    for (int i = 0; i < WHISPER_KV_RULE_COUNT; ++i) {
        fprintf(stderr, "%s%s", i ? (i == 5 ? ",\n                                    " : ", ") : " ", whisper_kv_rule_name(i));
    }
    fprintf(stderr, "\n");
    fprintf(stderr, "             --kv-budget N|P%%       [%-7d] positions a step may read, or their share of 1500\n",      params.budget);
    fprintf(stderr, "             --kv-sink-frac F       [%-7.2f] share of the budget given to sinks\n",                    params.sink_fraction);
    fprintf(stderr, "             --kv-tau T             [%-7.2f] steps less confident than this are executed again\n",     params.tau);
    fprintf(stderr, "             --kv-stats             print what the steps read, even with -np\n");
    fprintf(stderr, "             --kv-stats-json FILE   write the same to a file\n");
    fprintf(stderr, "             (budget, sink-frac or tau without rule or profile mean --kv-rule padsink-track;\n");
    fprintf(stderr, "              the other rules execute no step again and keep to their view, as in the sweep)\n\n");
}

// what each rule may be set to, as in pyharness/rules.py
static const char * const rule_settings[WHISPER_KV_RULE_COUNT] = {
    "none",
    "none",
    "none",
    "budget",
    "budget, seed",
    "budget, sink_fraction",
    "budget",
    "budget, pool",
    "budget, sink_fraction, lookbehind",
    "budget, sink_fraction, lookbehind, tau, guard_eot, guard_runaway",
};

static bool has_setting(int rule, const char * setting) {
    return strstr(rule_settings[rule], setting) != nullptr;
}

// was a flag given that the rule ignores?
static bool is_ignored(bool given, const char * flag, const char * setting, int rule) {
    if (!given || has_setting(rule, setting)) {
        return false;
    }

    fprintf(stderr, "error: %s: rule '%s' has no setting '%s' (it has: %s)\n", flag, whisper_kv_rule_name(rule), setting, rule_settings[rule]);
    return true;
}

// defaults (or the environment's profile) < profile < flags
bool kv_cli_apply(const kv_cli_params & params, struct whisper_context * ctx) {
    whisper_kv_view_params view = { sizeof(view) };
    whisper_kv_view_get(ctx, &view);

    char message[512];

    if (!params.profile.empty() &&
        whisper_kv_view_load_profile(ctx, params.profile.c_str(), &view, message, sizeof(message)) != WHISPER_KV_OK) {
        fprintf(stderr, "error: --kv-profile: %s\n", message);
        return false;
    }

    const bool tuned = params.has_budget || params.has_sink_fraction || params.has_tau;

    if (params.has_rule) {
        view.rule = params.rule;
    } else if (tuned && params.profile.empty() && view.rule == WHISPER_KV_RULE_OFF) {
        view.rule = WHISPER_KV_RULE_PADSINK_TRACK;
    }

    if (is_ignored(params.has_budget,        "--kv-budget",    "budget",        view.rule) ||
        is_ignored(params.has_sink_fraction, "--kv-sink-frac", "sink_fraction", view.rule) ||
        is_ignored(params.has_tau,           "--kv-tau",       "tau",           view.rule)) {
        return false;
    }

    if (params.has_budget)        view.budget        = params.budget;
    if (params.has_sink_fraction) view.sink_fraction = params.sink_fraction;
    if (params.has_tau)           view.tau           = params.tau;

    if (!has_setting(view.rule, "tau")) {
        view.tau = 0.0f; // of a profile: the rule ignores it, so --kv-stats must not show it
    }

    if (has_setting(view.rule, "budget") && view.budget < KV_CLI_MIN_BUDGET) {
        fprintf(stderr, "warning: --kv-budget %d: calibration tries no less than %d positions; expect wrong words, repeated at every temperature\n",
                view.budget, KV_CLI_MIN_BUDGET);
    }

    if (whisper_kv_view_check(ctx, &view, message, sizeof(message)) != WHISPER_KV_OK) {
        fprintf(stderr, "error: --kv-rule %s: %s\n", whisper_kv_rule_name(view.rule), message);
        return false;
    }

    if (whisper_kv_view_set(ctx, &view) != WHISPER_KV_OK) {
        fprintf(stderr, "error: out of memory for the reduced view\n");
        return false;
    }

    return true;
}

static bool write_json(const char * path, const whisper_kv_view_params & view, const whisper_kv_view_counters & c) {
    FILE * file = fopen(path, "w");
    if (!file) {
        fprintf(stderr, "error: --kv-stats-json: cannot write '%s': %s\n", path, strerror(errno));
        return false;
    }

    fprintf(file, "{\"rule\": \"%s\", \"budget\": %d, \"sink_fraction\": %g, \"tau\": %g,\n",
            whisper_kv_rule_name(view.rule), view.budget, view.sink_fraction, view.tau);
    fprintf(file, " \"prompts\": %lld, \"steps\": %lld, \"reduced\": %lld, \"full\": %lld, \"reexecuted\": %lld,\n",
            (long long) c.n_prompts, (long long) c.n_steps, (long long) c.n_reduced, (long long) c.n_full, (long long) c.n_reexec);
    fprintf(file, " \"reexecuted_tau\": %lld, \"reexecuted_eot\": %lld, \"full_runaway\": %lld,\n",
            (long long) c.n_reexec_tau, (long long) c.n_reexec_eot, (long long) c.n_full_runaway);
    fprintf(file, " \"rows_view\": %lld, \"rows_read\": %lld, \"row_size\": %u, \"bytes_read\": %lld, \"rows_copied\": %lld,\n",
            (long long) c.n_rows_view, (long long) c.n_rows_read, c.row_size, (long long) c.n_bytes_read, (long long) c.n_rows_copied);
    fprintf(file, " \"prompts_us\": %lld, \"steps_us\": %lld, \"tracking_us\": %lld}\n",
            (long long) c.t_prompts_us, (long long) c.t_steps_us, (long long) c.t_tracking_us);

    if (fclose(file) != 0) {
        fprintf(stderr, "error: --kv-stats-json: cannot write '%s': %s\n", path, strerror(errno));
        return false;
    }

    return true;
}

bool kv_cli_report(const kv_cli_params & params, struct whisper_context * ctx) {
    whisper_kv_view_params view = { sizeof(view) };
    whisper_kv_view_get(ctx, &view);

    whisper_kv_view_counters c;
    c.size = sizeof(c);
    whisper_kv_view_get_counters(ctx, nullptr, &c);

    if (params.stats) {
        fprintf(stderr, "\nkv: rule %s, budget %d, sink fraction %.2f, tau %.2f\n",
                whisper_kv_rule_name(view.rule), view.budget, view.sink_fraction, view.tau);
        fprintf(stderr, "kv: steps = %lld = %lld reduced + %lld full + %lld re-executed (tau %lld, eot %lld), %lld prompts\n",
                (long long) c.n_steps, (long long) c.n_reduced, (long long) c.n_full, (long long) c.n_reexec,
                (long long) c.n_reexec_tau, (long long) c.n_reexec_eot, (long long) c.n_prompts);
        fprintf(stderr, "kv: read  = %lld bytes = %lld rows x %u (%lld through the view), %lld rows copied\n",
                (long long) c.n_bytes_read, (long long) c.n_rows_read, c.row_size, (long long) c.n_rows_view, (long long) c.n_rows_copied);
    }

    return params.stats_json.empty() || write_json(params.stats_json.c_str(), view, c);
}

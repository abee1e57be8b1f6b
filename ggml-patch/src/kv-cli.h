// kv-cli: the --kv-* flags of whisper-cli

#pragma once

#include "whisper-kv-view.h"

#include <string>

struct kv_cli_params {
    std::string profile;
    std::string stats_json; // file for the counters, empty = none

    bool stats = false;     // print the counters even when prints are off

    // flags override the profile; a flag that was not given leaves the profile's value
    bool    has_rule          = false;
    bool    has_budget        = false;
    bool    has_sink_fraction = false;
    bool    has_tau           = false;
    int32_t rule              = WHISPER_KV_RULE_OFF;
    int32_t budget            = 0; // positions
    float   sink_fraction     = 0.0f;
    float   tau               = 0.0f;
};

// Takes argv[i] if it is one of ours, and its value. Wrong values end the program: exit code 2 and one line.
bool kv_cli_parse(kv_cli_params & params, int argc, char ** argv, int & i);

void kv_cli_print_usage();

// sets the context; false after one line on stderr that says why not
bool kv_cli_apply(const kv_cli_params & params, struct whisper_context * ctx);

// prints and writes the counters as asked for; false after one line on stderr
bool kv_cli_report(const kv_cli_params & params, struct whisper_context * ctx);

# SPDX-License-Identifier: Apache-2.0
# bash completion for engramctl(1)

_engramctl_tables()
{
	engramctl --json tables 2>/dev/null |
		sed -n 's/^ *"name": "\(.*\)",\{0,1\}$/\1/p'
}

_engramctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local commands="status tables load reload publish discard rollback
		unload verify clients events rpc health config hash rows lookup tokmap bench inspect
		manifest prune shutdown"
	local common="--socket --instance --timeout --json --help --version"
	local job="--no-wait --cancel-on-interrupt --progress"
	local command="" word i

	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		[[ " ${commands//[$'\n\t']/ } " == *" $word "* ]] &&
			command=$word && break
	done
	case $prev in
	--socket)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return ;;
	--checkpoint | --path | inspect | write | check)
		mapfile -t COMPREPLY < <(compgen -d -- "$cur")
		return ;;
	--layout)
		mapfile -t COMPREPLY < <(compgen -W "packed split" -- "$cur")
		return ;;
	--distribution)
		mapfile -t COMPREPLY < <(compgen -W "uniform zipf" -- "$cur")
		return ;;
	--config | validate | --diff | --export)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return ;;
	esac
	if [[ -z $command ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$commands $common" -- "$cur")
		return
	fi
	local words=$common
	case $command in
	load) words+=" --checkpoint --layout --params $job" ;;
	reload) words+=" --checkpoint --hold --force $job" ;;
	publish) words+=" --content-id" ;;
	unload | verify) words+=" $job" ;;
	events) words+=" --count" ;;
	health) words+=" live ready" ;;
	config) words+=" get validate" ;;
	hash) words+=" --tokens --layer" ;;
	rows | lookup) words+=" --layer --ids" ;;
	tokmap) words+=" --id --diff --export" ;;
	bench) words+=" --layer --rows --seconds --repeat --distribution
		--threads" ;;
	manifest) words+=" write check --config --table --token-map" ;;
	inspect) words+=" --config --table --tp-size --token-map" ;;
	shutdown) words+=" --keep --no-wait" ;;
	prune) words+=" --yes --path" ;;
	esac
	case $command in
	tables | load | reload | publish | discard | rollback | unload | verify | \
	health | hash | rows | lookup | tokmap | bench)
		[[ $cur == -* ]] || words+=" $(_engramctl_tables)" ;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -F _engramctl engramctl

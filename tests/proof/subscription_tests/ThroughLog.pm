# Lets a test of src/test/subscription subscribe to a logical log instead of its publisher.
#
#     THROUGH_LOG=/path/of/a/socket perl -I HERE -MThroughLog t/001_rep_changes.pl
#
# CREATE SUBSCRIPTION names the publisher. Here it gets the connection string of a safekeeper,
# which keeps the same publications of the same database. The socket's server (attached_logs.py) makes
# that log. A look at the publisher's walsenders and slots becomes a look at the safekeepers'.
# A wait for the publisher's walsender becomes a wait for the subscriber's worker.

package ThroughLog;

use strict;
use warnings;

use IO::Socket::UNIX;
use JSON::PP;
use Time::HiRes qw(usleep);
use PostgreSQL::Test::Cluster;

my %subscriptions;    # name -> {node, dbname, application, log, port}
my %served;           # ports of publishers with a log

my $cluster = 'PostgreSQL::Test::Cluster';
my %stock   = map { $_ => $cluster->can($_) } qw(psql poll_query_until wait_for_catchup);

my $string  = qr/'(?:[^']|'')*'|\$\$.*?\$\$/s;
my $subject = qr/SUBSCRIPTION\s+"?(\w+)"?/i;

# Ask the server one question. Die with its error.
sub asked
{
	my %question = @_;
	my $socket = IO::Socket::UNIX->new(Peer => $ENV{THROUGH_LOG})
	  or die "no server of logs at $ENV{THROUGH_LOG}: $!";
	print $socket encode_json(\%question) . "\n";
	my $answer = decode_json(scalar <$socket>);
	die "ThroughLog: $answer->{error}\n" if defined $answer->{error};
	return $answer;
}

# Return a quoted connection string with the safekeeper's place, and the log's name as dbname.
sub through
{
	my ($text, $log) = @_;
	$text =~ s/\bhost=\S+/host=127.0.0.1/;
	$text =~ s/\bport=\d+/port=$log->{port}/;
	$text =~ s/\bdbname=(?:''[^']*''|'[^']*'|[^\s'\$]+)/dbname=$log->{name}/;
	return $text;
}

sub value
{
	my ($text, $name) = @_;
	return $text =~ /\b$name='{0,2}([^\s'\$]+)/ ? $1 : undef;
}

sub subscribed
{
	my ($node, $dbname, $name, $text, $list) = @_;
	$list =~ s/\s+$//;
	my @publications = map { /"(.*)"/ ? $1 : lc s/^\s+|\s+$//gr } split /,/, $list;
	my $port = value($text, 'port');
	my $log  = asked(
		do           => 'log',
		host         => value($text, 'host'),
		port         => $port,
		dbname       => value($text, 'dbname'),
		publications => \@publications);
	$served{$port} = 1;
	$subscriptions{$name} = {
		node        => $node,
		dbname      => $dbname,
		application => value($text, 'application_name') // $name,
		log         => $log,
		port        => $port
	};
	return through($text, $log);
}

sub redirected
{
	my ($node, $dbname, $sql) = @_;
	$sql =~ s{(CREATE\s+$subject\s+CONNECTION\s+)($string)(\s+PUBLICATION\s+)
			  ((?:"?\w+"?\s*,\s*)*"?\w+"?)}
			 {$1 . subscribed($node, $dbname, $2, $3, $5) . $4 . $5}gxie;
	$sql =~ s{(ALTER\s+$subject\s+CONNECTION\s+)($string)}
			 {$1 . (exists $subscriptions{$2} ? through($3, $subscriptions{$2}{log}) : $3)}gxie;
	if ($sql =~ /ALTER\s+$subject\s+RENAME\s+TO\s+"?(\w+)/i && exists $subscriptions{$1})
	{
		my $renamed = $subscriptions{$2} = delete $subscriptions{$1};
		$renamed->{application} = $2 if $renamed->{application} eq $1;
	}
	# A commit that would wait for the subscriber waits for the log, which feeds it.
	$sql =~ s{(synchronous_standby_names\s*(?:TO|=)\s*')(\w+)}
			 {$1 . (exists $subscriptions{$2} ? "walkeeper_$subscriptions{$2}{log}{name}" : $2)}gxie;
	if ($served{ $node->port } && $sql =~ /pg_drop_replication_slot\('(\w+)'\)/)
	{
		asked(do => 'drop', port => $node->port, slot => $1);
		$sql = "SELECT ''";
	}
	if ($served{ $node->port } && $sql =~ /pg_stat_replication|pg_replication_slots/)
	{
		my $views = asked(do => 'views', port => $node->port);
		$sql =~ s/FROM\s+(?:pg_catalog\.)?(pg_stat_replication|pg_replication_slots)\b
				 /FROM ($views->{$1}) AS $1/gxi;
	}
	return $sql;
}

# Take out the subscriptions that the statements drop. They may make one of the same name anew.
sub leaving
{
	my ($sql) = @_;
	return if $sql =~ /slot_name\s*=\s*NONE/i;    # the slot stays, and so does its log
	my %leaving;
	while ($sql =~ /DROP\s+SUBSCRIPTION\s+(?:IF\s+EXISTS\s+)?"?(\w+)/gi)
	{
		$leaving{$1} = delete $subscriptions{$1} if exists $subscriptions{$1};
	}
	return %leaving;
}

# End the logs that no subscription needs any more, as their operator would.
sub ended
{
	foreach my $gone (@_)
	{
		next if grep { $_->{port} == $gone->{port} && $_->{log}{name} eq $gone->{log}{name} }
		  values %subscriptions;
		asked(do => 'end', port => $gone->{port}, name => $gone->{log}{name});
	}
	return;
}

no warnings 'redefine';
no strict 'refs';

*{"${cluster}::psql"} = sub {
	my ($self, $dbname, $sql, %params) = @_;
	my %leaving = leaving($sql);
	$sql = redirected($self, $dbname, $sql);
	my @found =
	  wantarray
	  ? $stock{psql}->($self, $dbname, $sql, %params)
	  : scalar $stock{psql}->($self, $dbname, $sql, %params);
	if ($found[0] == 0) { ended(values %leaving); }
	else { %subscriptions = (%leaving, %subscriptions); }
	return wantarray ? @found : $found[0];
};

*{"${cluster}::poll_query_until"} = sub {
	my ($self, $dbname, $query, $expected) = @_;
	my $looks = $served{ $self->port } && $query =~ /pg_stat_replication|pg_replication_slots/;
	return $stock{poll_query_until}->($self, $dbname, $query, $expected) unless $looks;
	$expected //= 't';
	foreach (1 .. 5 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my ($code, $output) = $self->psql($dbname, $query);
		return 1 if $output eq $expected;
		usleep(200_000);
	}
	return 0;
};

*{"${cluster}::wait_for_catchup"} = sub {
	my ($self, $name, $mode, $lsn) = @_;
	my ($subscription) = grep {
		my $one = $subscriptions{$_};
		$one->{port} == $self->port && ($_ eq $name || $one->{application} eq $name)
	} keys %subscriptions;
	return $stock{wait_for_catchup}->($self, $name, $mode, $lsn) unless defined $subscription;
	$lsn //= $self->lsn('write');
	my $one   = $subscriptions{$subscription};
	my $query = "SELECT latest_end_lsn >= '$lsn' FROM pg_stat_subscription "
	  . "WHERE subname IN ('$subscription', lower('$subscription')) AND relid IS NULL";
	$stock{poll_query_until}->($one->{node}, $one->{dbname}, $query)
	  or die "timed out waiting for $subscription to have $lsn";
	return;
};

1;
